"""Everything that a run or a bundle says about privacy, held against its ledger.

    from tacit.verification import verify

    findings = verify("runs/first")
    print(findings.differences)

It reads, and changes nothing.  Nothing is trusted because a file says so: events are made again
from the experiment, epsilons from the ledger, and the words of header, card and report from both,
by the functions that training uses.  It finds what was changed after the fact, in any file; a
mistake in those functions themselves is for the tests to find.

Guarantee: without a difference the hash chain is whole; what is charged is what the experiment's
file configures; and every epsilon and every word of the claim that stands in result.json, in the
model card or in the report follows from the ledger.  A ledger that was rewritten from its first
line to its last, with every other file to fit, is another ledger: to notice that, compare the head
with one that is known from elsewhere.
"""

from tacit.verification.verifying import Checked, Findings, verify

__all__ = ["Checked", "Findings", "verify"]
