"""Reads the production code of the workspace: every file below crates/*/src but for test code, without comments.

Test code: tests.rs, files below a folder `tests`, modules declared under `#[cfg(test)]`, and the crates `conformance`
and `test-support`. The scripts of this folder import this module.
"""

import re

# Strings are matched so that `//` inside one does not begin a comment; a lifetime is not a character.
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
      | b?r(?P<hashes>\#*)".*?"(?P=hashes)
      | b?"(?:[^"\\]|\\.)*"
      | b?'(?:[^'\\\n]|\\[^\n]{1,10}?)'""",
    re.VERBOSE | re.DOTALL,
)
TEST_MODULE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])")


# Crates of test code.
TEST_CRATES = ("conformance", "test-support")


def without_comments(text):
    return TOKEN.sub(lambda token: " " if token["comment"] else token[0], text)


def without_inline_tests(text):
    """Removes the bodies of `#[cfg(test)] mod name { .. }`. rustfmt puts their closing brace on a line of its own at
    the indentation of `mod`."""
    for found in reversed(list(TEST_MODULE.finditer(text))):
        if found[2] == "{":
            line = text.rfind("\n", 0, text.rfind("mod", 0, found.end())) + 1
            indent = re.match(r"\s*", text[line:])[0]
            end = text.find(f"\n{indent}}}", found.end())
            text = text[: found.start()] + (text[end + len(indent) + 2 :] if end >= 0 else "")
    return text


def folder_of_modules(file):
    return file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.with_suffix("")


def production_files(root):
    """Yields the path of every production file, relative to `root`, with its text without comments."""
    sources = {
        file: without_comments(file.read_text())
        for file in sorted(root.glob("crates/*/src/**/*.rs"))
        if file.name != "tests.rs"
        and "tests" not in file.relative_to(root).parts
        and file.relative_to(root).parts[1] not in TEST_CRATES
    }
    tests = [
        folder_of_modules(file) / found[1]
        for file, text in sources.items()
        for found in TEST_MODULE.finditer(text)
        if found[2] == ";"
    ]
    for file, text in sources.items():
        if not any(file.with_suffix("") == test or test in file.parents for test in tests):
            yield file.relative_to(root), without_inline_tests(text)
