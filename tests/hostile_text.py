"""Texts that mean something to a shell, a terminal, YAML, TOML or HTML, for every place that writes
text of others: what it holds is data there."""

PRINTABLE = (
    "a b",
    "it's",
    'say "so"',
    "$(touch owned)",
    "`touch owned`",
    "${HOME}",
    "a; touch owned",
    "a && touch owned",
    "a | sh",
    "> owned",
    "*",
    "~",
    "-n",
    "--help",
    "#no comment",
    "back\\slash",
    "{{ braces }} {x}",
    "key: value",
    "- item",
    "&anchor *alias !tag",
    *(
        "[/",
        "[/data/x.npy]",
        "out[lr=0.1]",
        "[red]",
        "[/red]",
        "[bold",
        "]",
        "[link=x]",
        "[@click]",
    ),
    *("[[red]]bold[/]", "\\[", ":smile:", "&& x", "-rf", "a=b", "<b>", "%s"),
    "<script>alert(1)</script>",
    "END_OF_TASK",
    "ümlaut 漢字",
)
"""On one line, and all of it can be seen."""

CONTROL = (
    "two\nlines",
    "END_OF_TASK\ntouch owned",
    "carriage\rreturn",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "line\u2028separator",
    "right\u202eleft",
    "nul\x00",
    "tab\tulator",
    "\x85next",
)
"""With characters that a terminal obeys, or at which lines end."""
