"""What the pages of the documentation show: their blocks of code, and the commands in them."""

import re


def blocks(page):
    """The code blocks of a page: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page):
    """The `ddloco ...` lines of a page, in order."""
    lines = [line for language, text in blocks(page) if not language for line in text.splitlines()]
    return [line for line in lines if line.startswith("ddloco ")]
