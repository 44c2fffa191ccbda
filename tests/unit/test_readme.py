"""What the README and the documents point at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
SCRIPT = re.compile(r"(?:bash|python) ([\w./-]+\.(?:sh|py))")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_and_every_script_of_a_command_exists(document: Path):
    text = document.read_text("utf-8")
    missing = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    missing += [script for script in SCRIPT.findall(text) if not (ROOT / script).is_file()]
    assert not missing


def test_the_readme_links_every_document():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(f"docs/{document.name}" in readme for document in PAGES)
