"""A run directory in, one self-contained HTML page out, for the people who review a privacy claim.

The way from one to the other:

    Run --> facts.gather --> report.json --> page.render --> report.html

`gather` collects all that a report says as JSON data: `claim` what follows from the ledger alone,
`warnings` what a reviewer must know first, `language` and `nlu` what only one task has, and `audit`
what was found by attacking a language model.  `render` makes the page from those facts and nothing
else, with the charts of `figures`, so that `tacit verify` can make it again and compare.
"""
