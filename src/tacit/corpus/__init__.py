"""User-keyed text: ingest, a memory-mapped store, splits and views, and the people behind it.

Where to look, in the order in which data passes through:

    files, readers      input files in five formats, plain or compressed, become records
    grouping            records become whole users, sorted and capped, out of core
    ingest, writer      users become a corpus directory, whole or not at all
    store               a corpus directory, read one user at a time
    builtin             corpora by name: real chat that comes with the package, generated users
    source              what everything downstream reads from, and other ways to look at it
    hashing, sketches   the digests that decide order and split; keyed samples to compare sets by

People outlive a corpus directory, so what is known about them does too:

    people              who they are: recognised when their text comes again, by a secret of this
                        installation
    people_costs        what several runs on them cost together, and the budget for all of them
    people_ledger       the file that remembers every charge, and refuses what exceeds the budget
    public_inputs       refuses their text where something is declared to be public
"""
