"""`tacit papers head-words`: Table 3 of McMahan et al. 2018."""


def test_the_command_counts_every_target_once(command, private_run):
    tacit = command("papers head-words")
    counts = tacit.json(private_run)["head_words"]
    assert list(counts) == ["10"]  # the dictionary has 17 words
    assert len(counts["10"]) == 11
    assert sum(counts["10"]) == command("evaluate").json(private_run)["tokens"]
    assert "percent" in tacit.says(private_run)
