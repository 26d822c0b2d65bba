"""Training where the text stays with its owners: clients compute, a server sums, noises, accounts.

    orders          what a client is sent, and what it answers: every field of it
    bounds          what an answer must be: its shape, its range and its exact norm
    engine          an engine like the others, whose users are clients
    participations  who took part in which round, by the server's own record
    keys            certificates, client keys and enrolment
    flower          Flower, and what of it is off
    fleet           Flower's state of clients and messages, and a `Grid` on it
    service         Flower's Fleet API over TLS
    waiting_room    requests that wait in it until they can be answered
    connection      a client's side of it
    own_ledger      what a client has given, by its own record
    client          a client: its text, its consent, its update
    silo            a client with many people: it draws them, and sends their sum
    silo_ledger     what each person of a silo has given, by the silo's record
    trial           all of it on one machine, in processes of their own
    costs           the bytes of a round, from messages that are built for it

With secure sums, of which the server sees no contribution (`tacit.secure_sum` is the protocol):

    roster             who may be in a sum, as clients know it
    sum_terms          which sum it is, of whom, and the messages
    secure_client      a client's side
    sum_ledger         which sums a client was in, by its own record
    secure_gathering   the server's side
    kept_sum           what it keeps of a round's sum until the round is over

Flower (flwr) is the transport and no more than that: it knows nothing of privacy here.
"""
