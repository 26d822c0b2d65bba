"""What `make docs` changes in a page before it is rendered."""


def on_page_markdown(markdown, **_):
    """Drop `no-test`, which is for tests/test_docs.py: a fence with two words is not a fence."""
    return markdown.replace("```console no-test\n", "```console\n")
