"""The codes of `stagec check`: what each means and what to do about it.

E06xx are faults: a consumer fails, hangs or computes something else. W06xx are suspicions. Those
below E0620 belong to the writer of traces.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """`title` for the list of codes, `help` for whoever meets it."""

    title: str
    help: str


CODES: dict[str, Code] = {
    # The graph of one rank.
    "E0620": Code(
        "a node id is used twice",
        "give each node of a file its own id; consumers keep only the last",
    ),
    "E0621": Code(
        "a dependency names no node",
        "write the node it depends on, or drop the dependency",
    ),
    "E0622": Code("dependencies form a cycle", "no node of a cycle ever runs: break it"),
    # Attributes of a node.
    "E0630": Code(
        "a node type does not run",
        "use COMP, COMM_COLL, COMM_SEND, COMM_RECV, MEM_LOAD or MEM_STORE",
    ),
    "E0631": Code("an attribute is missing", "add it to the node"),
    "E0632": Code(
        "an attribute has a value of the wrong kind",
        "write numbers as integers or bool, `pg_name` as a string, `inputs` and `outputs` as "
        "string lists",
    ),
    "E0633": Code("a number is out of range", "write sizes, ranks and tags as they are, unsigned"),
    "E0634": Code(
        "compute or memory costs nothing",
        "write at least 1 of `num_ops` and `tensor_size`: after a node without either, the "
        "simulator does not start its children",
    ),
    "E0635": Code("a communication moves nothing", "leave out what moves 0 bytes, on every rank"),
    "E0636": Code(
        "a collective does not exist in the target",
        "use ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER or ALL_TO_ALL",
    ),
    "E0637": Code(
        "a communication is marked as an op of the CPU",
        "set `is_cpu_op` to false on communication nodes",
    ),
    # Groups and collectives.
    "E0640": Code(
        "the file of groups cannot be used",
        'write an object of lists: {"1": [0, 1], "2": [2, 3]}',
    ),
    "E0641": Code("the id of a group is not a positive integer", "name groups 1, 2, 3, ..."),
    "E0642": Code(
        "a collective names an unknown group",
        "add the group to comm_group.json, or give that file with --comm-group",
    ),
    "E0643": Code(
        "a rank issues a collective of a group it is not in",
        "add the rank to the group or name another",
    ),
    "E0644": Code(
        "a collective runs on a group of one rank",
        "leave it out: it moves nothing and never completes",
    ),
    "E0645": Code(
        "group ids are equal modulo 500",
        "renumber them: such groups share message tags on the ranks that are in both",
    ),
    "E0646": Code(
        "the world is used without an id beside named groups",
        "give the group of all ranks an id of its own",
    ),
    "E0647": Code(
        "a group has members that do not exist",
        "list each rank of the set at most once per group",
    ),
    "E0648": Code(
        "members of a group issue different numbers of collectives",
        "issue the same collectives on every member",
    ),
    "E0649": Code(
        "members of a group issue collectives in different orders",
        "number the nodes so that every member issues them in one order: the n-th of one member "
        "meets the n-th of the others",
    ),
    "E0650": Code(
        "members of a group issue different kinds of collectives",
        "make the n-th collective of every member the same",
    ),
    "E0651": Code(
        "members of a group disagree on the size of a collective",
        "give it the same `comm_size` on every member",
    ),
    # Sends and receives.
    "E0652": Code(
        "a receive has no send", "add the send; the same tag, size and ranks identify it"
    ),
    "E0653": Code("a send has no receive", "add the receive on the peer, or drop the send"),
    "E0654": Code("a send and its receive differ in size", "give both the same `comm_size`"),
    "E0655": Code("a send and its receive differ in tag", "give both the same `comm_tag`"),
    "E0656": Code("the peer of a send or receive does not exist", "name a rank of the set"),
    "E0657": Code("a rank sends to or receives from itself", "leave it out: it moves nothing"),
    "E0658": Code(
        "`comm_src` of a send or `comm_dst` of a receive is another rank",
        "name the rank whose trace it is, or leave the attribute out",
    ),
    # Deadlock.
    "E0660": Code(
        "dependencies form a cycle across ranks",
        "reorder the nodes or drop a dependency: under no schedule can they run",
    ),
    "E0661": Code(
        "the ranks wait for each other for ever",
        "number the nodes so that every rank issues its communication in one common order, or add "
        "control dependencies that force it: a rank has one slot for collectives and sends, and "
        "fills it with the ready node of lowest id",
    ),
    "E0662": Code(
        "the target would pair collectives that differ",
        "force their order with control dependencies: which is ready first depends on run times",
    ),
    # Memory.
    "E0670": Code(
        "a list of tensors is malformed",
        "write `inputs` and `outputs` as [name, bytes, name, bytes, ...], bytes in decimal",
    ),
    "E0671": Code("a tensor is written twice", "give each value a name of its own"),
    "E0672": Code(
        "a tensor is read before it is written",
        "make the reader depend on the writer and come after it",
    ),
    "E0673": Code(
        "some nodes have no `inputs` or `outputs`",
        "give both lists (empty ones too) to every node, or to none",
    ),
    # The target's rules on files.
    "E0680": Code(
        "the target does not read compressed traces", "decompress the files: gunzip *.et.gz"
    ),
    "E0681": Code("a trace is not writable", "chmod u+w: the target opens traces read-write"),
    "E0682": Code("there is only one rank", "the target does not run a single rank"),
    # Files.
    "E0690": Code(
        "there is no trace set",
        "give the directory that holds the files `PREFIX.<rank>.et`",
    ),
    "E0691": Code("a file cannot be read", "traces are regular files that one may read"),
    "E0692": Code("a trace is cut short", "write the file again: its end is missing"),
    "E0693": Code(
        "a message is not valid protobuf",
        "write the file again: a Chakra trace is a GlobalMetadata and Nodes of the schema v0.0.4, "
        "each preceded by its length as a varint",
    ),
    "E0694": Code(
        "the header is missing",
        "write a GlobalMetadata message first; readers take the first message for it",
    ),
    "E0695": Code("a trace has no nodes", "give every rank at least one node"),
    "E0696": Code(
        "ranks have no trace",
        "name the files PREFIX.0.et to PREFIX.<N-1>.et, without gaps",
    ),
    "E0697": Code(
        "a file name is not understood",
        "name it PREFIX.<rank>.et, the rank in decimal without leading zeros",
    ),
    "E0698": Code(
        "a trace is too large to check",
        "check it in parts: such a trace is more than any consumer reads",
    ),
    "E0699": Code("gzip data is damaged", "compress the file again"),
    # Suspicions.
    "W0690": Code("files are left out", "move them away if they do not belong to the set"),
    "W0691": Code(
        "the schema has another version",
        "this checker reads v0.0.4: fields of others may mean something else",
    ),
    "W0692": Code(
        "a file is not as stagec wrote it",
        "write the set again; or, if the change is meant, remove `manifest.json`, which has the old "
        "CRC-32",
    ),
    "W0630": Code("an attribute is there more than once", "write it once; the first one counts"),
    "W0631": Code(
        "compute has a duration and no cost",
        "add `num_ops` and `tensor_size`: without them the trace only runs with the roofline off",
    ),
    "W0632": Code(
        "a collective's size is that of its result",
        "write the bytes that a rank puts in: of an ALL_GATHER its shard, of a REDUCE_SCATTER the "
        "whole buffer",
    ),
    "W0633": Code("a number needs more than 32 bits", "the target keeps its lower 32 bits"),
    "W0634": Code(
        "a size is not a whole number of elements",
        "sizes are bytes: multiply elements by the width of their dtype",
    ),
    "W0635": Code(
        "a size looks like a count of elements",
        "sizes are bytes: multiply elements by the width of their dtype",
    ),
    "W0636": Code("a number is implausibly large", "check its unit: sizes are bytes of one rank"),
    "W0637": Code("a broadcast moves nothing in the target", "write another collective"),
    "W0638": Code(
        "an all-gather is smaller than the number of its chunks",
        "the target loops for ever when `preferred-dataset-splits` exceeds `comm_size`",
    ),
    "W0639": Code("a memory access moves nothing", "leave it out, or give its `tensor_size`"),
    "W0640": Code(
        "groups are used by no node",
        "leave them out of the file: each rank builds each group, at a cost in memory",
    ),
    "W0641": Code(
        'the path of the groups has the word "empty" in it',
        "rename it: the target takes such a path for no file",
    ),
    "W0642": Code(
        "compute with a cost is marked as an op of the CPU",
        "set `is_cpu_op` to false: of ops of the CPU the target takes the recorded duration",
    ),
    "W0643": Code(
        "compute that waits for nothing takes less than a nanosecond",
        "let it do more, or wait for a node that does: on fast devices the target takes it for 0 ns "
        "and aborts when that happens at time 0",
    ),
    "W0660": Code(
        "ranks may wait for each other, depending on run times",
        "force the order of communication with control dependencies",
    ),
    "W0661": Code(
        "deadlock was not looked for",
        "the ranks have too little in common to be replayed in bounded memory",
    ),
    "W0670": Code(
        "a tensor's bytes are not written in decimal",
        "write whole numbers: readers stop at the first character that is not a digit",
    ),
}
