/* The numbers of the protocol; docs/agent-protocol.md says what they mean. */
#ifndef ATOLL_WIRE_H
#define ATOLL_WIRE_H

enum {
    PROTOCOL_VERSION = 1,
    FRAME_HEAD = 9,              /* u32 length, u8 type, u32 id */
    FRAME_MIN = 5,               /* smallest value of the length field */
    FRAME_MAX = 262144,          /* largest */
    FRAME_BYTES_MAX = FRAME_MAX + 4,
    EXECUTION_ID_BYTES = 16,
    MAX_LIST_ITEMS = 16384,
    MAX_ITEM_BYTES = 131071,     /* the kernel's own limit of one argument */
    MAX_PATH_BYTES = 4095,
    MAX_READ_BYTES = 1048576,
    MAX_CAPTURE_BYTES = 4194304,
    MAX_TERMINAL_SIDE = 4096,
    DATA_PER_FRAME = 131072,     /* COLLECTED frames carry at most this */
    STREAM_BYTES_PER_FRAME = 131072, /* as do the DATA frames of streams, in both directions */
    STREAM_WINDOW_BYTES = 1048576, /* what a client may send of one stream before it is granted more */
    STREAM_SMALL_WINDOW_BYTES = 131072 /* the same where many streams are open */
};

enum request_type {
    REQ_HELLO = 0x01,
    REQ_OOM = 0x02,
    REQ_KILL = 0x05,
    REQ_START = 0x10,
    REQ_READ = 0x11,
    REQ_STDIN = 0x12,
    REQ_SIGNAL = 0x13,
    REQ_RESIZE = 0x14,
    REQ_FORGET = 0x15,
    REQ_LIST = 0x16,
    REQ_STATS = 0x17,
    REQ_RUN = 0x18,
    REQ_STOP = 0x19,
    REQ_WATCH = 0x1A,
    REQ_OPEN = 0x20,
    REQ_DATA = 0x21,
    REQ_CREDIT = 0x22,
    REQ_FINISH = 0x23,
    REQ_CLOSE = 0x24,
    REQ_QUIET = 0x25,
    REQ_HOLD = 0x26,
    REQ_RELEASE = 0x27
};

enum answer_type {
    ANS_HELLO = 0x81,
    ANS_STARTED = 0x90,
    ANS_OUTPUT = 0x91,
    ANS_STATE = 0x92,
    ANS_ITEM = 0x93,
    ANS_STATS = 0x94,
    ANS_COLLECTED = 0x95,
    ANS_OK = 0x96,
    ANS_ERROR = 0x97,
    NOTE_EXITED = 0xA0,
    NOTE_SETTLED = 0xA1,
    NOTE_KILLED = 0xA2,
    STREAM_OPENED = 0xB0,
    STREAM_DATA = 0xB1,
    STREAM_CREDIT = 0xB2,
    STREAM_FINISH = 0xB3,
    STREAM_END = 0xB4
};

enum error_code {
    ERR_INVALID_REQUEST = 1,
    ERR_EXECUTION_NOT_FOUND = 2,
    ERR_EXECUTION_EXITED = 3,
    ERR_TOO_MANY_EXECUTIONS = 4,
    ERR_UNKNOWN = 5
};

enum end_reason {
    REASON_NONE = 0,
    REASON_DEADLINE = 1,
    REASON_CANCELED = 2,
    REASON_KILLED = 3,
    REASON_SHUTDOWN = 4
};

enum event_kind {
    EVENT_INIT = 0,
    EVENT_STDOUT = 1,
    EVENT_STDERR = 2,
    EVENT_EXIT = 3,
    EVENT_TRUNCATED = 4
};

enum stream_kind {
    STREAM_FILES = 1, /* a worker of the files part */
    STREAM_PORT = 2   /* a TCP connection to a port of this sandbox */
};

enum start_flag {
    FLAG_STDIN = 1,
    FLAG_PTY = 2
};

#endif
