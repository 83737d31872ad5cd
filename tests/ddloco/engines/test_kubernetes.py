"""The manifests: what they say, and whether Kubernetes' own schemas accept them."""

import json

import pytest
import yaml

from ddloco.stage.arrays.shared_memory import MEMORY_FOLDER
from tests.installed import CHECKOUT
from tests.pages import blocks

PAGE = "docs/clusters.md"

IMAGE = """
[launch.kubernetes]
image = "registry.example/ddloco:0.2"
secret = "small-keys"
learner_pod = {nodeSelector = {pool = "gpu"}, tolerations = [{key = "gpu", operator = "Exists"}]}
learner_container = {resources = {limits = {"nvidia.com/gpu" = 1}}, workingDir = "/app"}
"""
TWO = "syncers = 2\n" + IMAGE


def manifests(text):
    """All documents of a text, by kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def container(manifest):
    """The one container of a Job."""
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_each_actor_is_started_again_alone(launched):
    """A Job per shard with service, volume and budget; one Indexed Job of learners."""
    code, text, _ = launched("--on", "kubernetes", "--learners", "5", job=TWO)
    assert code == 0
    found = manifests(text)

    for shard in ("small-syncer-0", "small-syncer-1"):
        kinds = {kind for kind, name in found if name == shard}
        assert kinds == {"Job", "Service", "PersistentVolumeClaim", "PodDisruptionBudget"}
    learners = found["Job", "small-learner"]["spec"]
    assert (learners["completions"], learners["parallelism"]) == (5, 5)
    pod = learners["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert container(found["Job", "small-learner"])["resources"]["limits"] == {"nvidia.com/gpu": 1}
    shared = {"name": "shm", "mountPath": str(MEMORY_FOLDER)}  # Else a pod has 64 MiB there.
    for job in ("small-syncer-0", "small-learner"):
        assert shared in container(found["Job", job])["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    said = container(found["Job", "small-learner"])["args"][0]
    assert "tcp://small-syncer-0:5555 tcp://small-syncer-1:5555" in said
    assert '--name "learner-$JOB_COMPLETION_INDEX"' in said
    assert "\nexec ddloco" in said


def decided(manifest, code):
    """What a Job's policy does after an exit code."""
    for rule in manifest["spec"]["podFailurePolicy"]["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", ()):
            assert rule["onExitCodes"]["containerName"] == container(manifest)["name"]
            return rule["action"]
    return "count"


def test_what_is_final_and_what_is_started_again(launched):
    """75 is started again for ever, 1 and 2 are final, a crash is counted."""
    _, text, _ = launched("--on", "kubernetes", job=IMAGE)
    found = manifests(text)

    for name, final in (("small-syncer", "FailJob"), ("small-learner", "FailIndex")):
        job = found["Job", name]
        assert job["spec"]["podReplacementPolicy"] == "Failed"
        actions = [decided(job, code) for code in (75, 1, 2, 137)]
        assert actions == ["Ignore", final, final, "count"]


def test_the_job_file_is_in_it(launched, tmp_path):
    """The pods read the same job; keys are named and never printed."""
    strange = IMAGE + "\n  # {braces} \\\\ and 'quotes'\n"
    _, text, _ = launched("--on", "kubernetes", "--set=job.seed=3", job=strange)
    found = manifests(text)

    held = found["ConfigMap", "small-job"]["data"]["job.toml"]
    assert held.rstrip() == (tmp_path / "job.toml").read_text().rstrip()
    assert "Secret" not in {kind for kind, _ in found}
    assert "kubectl create secret generic small-keys" in text
    assert "--set=job.seed=3" in container(found["Job", "small-syncer"])["args"][0]


def test_the_schemas_accept_it(launched):
    """Kubernetes' own schemas accept every manifest, and find a planted mistake."""
    checker = pytest.importorskip("kubernetes_validate")
    for job in (IMAGE, TWO):
        _, text, _ = launched("--on", "kubernetes", job=job)
        for each in manifests(text).values():
            checker.validate(each, "1.33", strict=True)

    [reader] = [text for language, text in blocks(CHECKOUT / PAGE) if language == "yaml"]
    checker.validate(yaml.safe_load(reader), "1.33", strict=True)

    planted = manifests(text)["Job", "small-learner"]
    planted["spec"]["podFailurePolicy"]["rules"][0]["acton"] = "Ignore"
    with pytest.raises(checker.ValidationError):
        checker.validate(planted, "1.33", strict=True)


def test_scaling_is_one_patch(launched):
    """Both numbers of the elastic Job change at once."""
    code, text, _ = launched("--on", "kubernetes", "--scale", "3", job=IMAGE)

    patch = text.partition("--patch '")[2].partition("'")[0]
    assert code == 0
    assert json.loads(patch) == {"spec": {"completions": 3, "parallelism": 3}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--set=launch.kubernetes.image=", "launch.kubernetes.image: '': want a container image"),
        ("--set=transport.insecure=false", "launch.kubernetes.secret: missing"),
        ("--set=launch.kubernetes.storage=much", "launch.kubernetes.storage"),
        ("--set=launch.kubernetes.learner_pod={volumes=[]}", "'volumes' is written by ddloco"),
        ('--set=launch.kubernetes.learner_pod={"a: b"=1}', "'a: b' is no field"),
        ("--set=job.name=Small", "job.name: Small is no name for Kubernetes"),
    ],
)
def test_bad_input_is_one_line(launched, words, said):
    """It names the key, and the exit code is 2."""
    job = IMAGE if "insecure" not in words else IMAGE.replace('secret = "small-keys"', "")
    code, out, err = launched("--on", "kubernetes", words, job=job)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
