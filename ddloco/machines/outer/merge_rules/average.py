"""The weighted average of the changes, as in federated averaging (arXiv 1602.05629)."""

from ddloco.machines.outer.merge_rules.rule import MergeRule

AVERAGE = MergeRule(merges_values=True)
