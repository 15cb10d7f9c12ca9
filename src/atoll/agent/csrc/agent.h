/* The agent's state: one struct, passed around, owned by agent_main. What each file does with it is declared here, in the
 * order of the layers: answers and waiters at the bottom, commands, requests, and the loop on top. */
#ifndef ATOLL_AGENT_H
#define ATOLL_AGENT_H

#include "bytes.h"
#include "proctree.h"
#include "request.h"
#include "ring.h"
#include "spawn.h"
#include "wire.h"

enum {
    MAX_RUNNING = 256,
    MAX_EXITED = 1024,
    MAX_EXITED_BYTES = 64 * 1024 * 1024,
    MAX_WAITERS = 1024,
    MAX_STDIN_BYTES = 1024 * 1024,           /* that wait for one command */
    MAX_STDIN_BYTES_ALL = 16 * 1024 * 1024,
    OUT_HIGH_WATER = 1024 * 1024,            /* beyond it the agent reads no request and answers none that waits */
    STDIN_LIMIT_MS = 30000,
    TERM_TO_KILL_MS = 5000,
    DRAIN_MS = 250,
    TERMINAL_DRAIN_MS = 50,
    TERMINAL_LOOK_MS = 100,
    SETTLE_LOOK_MS = 5,
    SETTLE_LIMIT_MS = 250,
    MEMORY_SETTLE_MS = 60,                   /* what a killed process gives back takes this long to show */
    MAX_STREAMS = 128,
    STREAM_HIGH_WATER = 512 * 1024,          /* streams put nothing behind more than this, so that the rest is not delayed */
    WIDE_STREAMS = 16,                       /* this many get the large window, so that all of them together stay small */
    STREAM_CLOSE_MS = 5000,                  /* for a worker to clean up after its client has gone */
    STREAM_CONNECT_MS = 10000,
    FOLLOW_BACKLOG_BYTES = 2 * 1024 * 1024,  /* half of a ring: more of it unread, and a command waits for its reader */
    FOLLOW_MS = 500,                         /* but no longer than this, */
    FOLLOW_FREE_MS = 2500,                   /* and then not again for so long: a slow reader costs it a sixth of its time */
    HOLD_LOOK_MS = 2,
    HOLD_STILL_LOOKS = 2,                    /* in a row: /proc shows the first thread of a process, the others may be behind */
    HOLD_KEEP_MS = 50,
    HOLD_LIMIT_MS = 2000,                    /* a fork bomb is waited for no longer */
    BUCKETS = 1024
};

#define NEVER UINT64_MAX

enum source_kind { SOURCE_REQUESTS, SOURCE_ANSWERS, SOURCE_SIGNALS, SOURCE_STDIN, SOURCE_STDOUT, SOURCE_STDERR, SOURCE_STREAM };

/* What epoll hands back. */
struct source {
    enum source_kind kind;
    int fd; /* -1: closed */
    union {
        struct command *command;
        struct stream *stream;
    };
};

enum phase {
    PHASE_RUNNING,  /* the first process lives */
    PHASE_DRAINING, /* it has ended; its pipes may hold more */
    PHASE_OVER      /* the exit event is out */
};

struct capture {
    uint8_t *data;
    size_t len, cap;
    bool cut;
};

struct stdin_job {
    struct stdin_job *next;
    uint32_t request;
    bool answered; /* its client has gone; the bytes are still written */
    bool eof;
    uint64_t until;
    size_t len, done;
    uint8_t data[];
};

struct command {
    struct command *bucket_next;
    struct command *prev, *next; /* in the list of the running or of the exited, oldest first */
    uint8_t id[EXECUTION_ID_BYTES];
    enum phase phase;
    bool run;      /* collects instead of keeping a ring */
    bool terminal;
    bool known;    /* found by its id; not so after FORGET */
    unsigned pins; /* waiters that point here */
    pid_t pid;
    struct tree tree;
    enum end_reason intent; /* why it is being ended, if it is */
    uint64_t asked_signals; /* bit n - 1: signal n was sent on request */
    bool lost_memory;       /* one of its processes was killed because memory ran out */
    int exit_code;
    enum end_reason reason;
    uint64_t started_ms, exited_ms;
    uint64_t deadline_at, kill_at, drain_at, terminal_look_at;
    uint64_t total[2]; /* bytes of stdout and stderr */
    struct ring ring;
    uint64_t followed, followed_at; /* how far its foremost reader has got, and when it read last */
    uint64_t output_held_until;     /* NEVER: it may write */
    uint64_t free_until;            /* its reader did not keep up: until then it does not wait again */
    struct capture capture[2];
    size_t capture_max;
    struct source in, out, err;
    bool in_armed;
    struct stdin_job *jobs;
    size_t jobs_bytes;
};

struct waiter {
    struct waiter *next;
    uint8_t type;
    uint32_t request;
    struct command *command; /* NULL for STOP, QUIET and HOLD */
    uint64_t from;
    uint32_t max_bytes;
    uint64_t until;
};

/* Bytes both ways between the client and a worker or a port, each direction with credit. */
struct stream {
    struct stream *next;
    uint32_t id; /* the OPEN's; its frames carry it */
    enum stream_kind kind;
    pid_t pid;                       /* of the worker; 0: a port, or reaped */
    struct source in, out;           /* towards the worker or the port, and from there */
    uint32_t in_events, out_events;  /* what epoll watches; 0: not added */
    uint16_t port;
    int family;                      /* of the connection to the port */
    bool connecting, finished;       /* the client has said FINISH */
    bool closed;                     /* nobody listens any more; it only has to end */
    bool over;                       /* END is said; freed at the end of the round */
    struct queue pending;            /* from the client, not yet taken */
    uint32_t room;                   /* its window; credit is given back in halves of it */
    uint32_t window;                 /* what the client may still send */
    uint32_t taken;                  /* and what it will be granted next */
    uint64_t credit;                 /* what may still be sent to the client */
    uint8_t code;                    /* the worker's exit code, or an errno of a port */
    uint64_t until;                  /* of connecting, or of cleaning up */
};

struct command_list {
    struct command *first, *last;
    size_t count;
};

struct agent {
    struct identity identity;
    char **environment; /* what commands inherit */
    uint64_t memory_limit;
    uint64_t began_at;
    int epoll, null_fd;
    struct source requests, answers, signals;
    struct queue in, out;
    bool requests_armed, answers_armed;
    struct command *buckets[BUCKETS];
    struct command_list running, exited;
    size_t exited_bytes, jobs_bytes;
    struct command *graveyard; /* freed at the end of the round: events of this round may still point to them */
    uint64_t last_tag;
    struct waiter *waiters;
    size_t waiter_count;
    struct stream *streams;
    size_t stream_count;
    const char *program; /* this program, for workers */
    bool waiters_due;
    bool stopping;
    struct command *entrypoint;
    bool settled;
    unsigned asleep_looks;
    uint64_t settle_look_at, settle_limit_at;
    uint64_t hold_until, hold_look_at; /* NEVER: nothing is held */
    unsigned still_looks;
    pid_t *held; /* that were stopped for it */
    size_t held_count, held_cap;
    pid_t memory_victim;
    uint64_t memory_quiet_until;
};

/* answer.c: frames into agent->out */
void answer_ok(struct agent *a, uint32_t request);
void answer_error(struct agent *a, uint32_t request, enum error_code code, const char *sentence);
void answer_hello(struct agent *a, uint32_t request, uint32_t epoch);
void answer_started(struct agent *a, uint32_t request, const struct command *c, bool existing);
void answer_state(struct agent *a, uint8_t type, uint32_t request, const struct command *c, uint64_t next, bool complete);
void answer_item(struct agent *a, uint32_t request, const struct command *c);
void answer_collected(struct agent *a, uint32_t request, const struct command *c);
uint64_t answer_events(struct agent *a, uint32_t request, struct command *c, uint64_t from, uint32_t max_bytes);
void answer_stats(struct agent *a, uint32_t request, uint64_t memory, uint32_t processes);
void notify_settled(struct agent *a);
void notify_killed(struct agent *a, pid_t pid);

/* waiter.c: answers that wait */
void waiter_add(struct agent *a, const struct request *r, struct command *c, uint64_t until);
void waiters_answer(struct agent *a, uint64_t now); /* those that are ready, as far as the client reads */
void waiters_drop(struct agent *a);
uint64_t waiters_next(const struct agent *a);

/* command.c: the table of commands, from start to oblivion */
struct command *command_find(struct agent *a, const uint8_t *id);
struct command *command_start(struct agent *a, const struct request *r); /* answers the error itself when it returns NULL */
struct command *command_launch_entrypoint(struct agent *a, char **argv);
void command_retire(struct agent *a, struct command *c); /* from the running to the exited */
void command_forget(struct agent *a, struct command *c);
void command_unpin(struct agent *a, struct command *c);
void commands_bury(struct agent *a);

/* lifecycle.c: what happens to a command while it runs, and how it ends */
void command_output(struct agent *a, struct command *c, struct source *from);
void command_reaped(struct agent *a, struct command *c, int wait_status);
void command_signal(struct agent *a, struct command *c, int number, bool cancel);
void command_end(struct agent *a, struct command *c, enum end_reason reason, uint64_t grace_ms);
void command_tick(struct agent *a, struct command *c, uint64_t now);
uint64_t command_next_tick(const struct command *c);

/* follow.c: output at the pace of its reader */
bool follow_holds(struct agent *a, struct command *c);
void follow_read(struct agent *a, struct command *c, uint64_t next);
void follow_release(struct agent *a, struct command *c);
void follow_tick(struct agent *a, struct command *c, uint64_t now);

/* input.c: standard input and its back-pressure */
void input_request(struct agent *a, struct command *c, const struct request *r);
void input_write(struct agent *a, struct command *c, uint64_t now);
void input_fail(struct agent *a, struct command *c, enum error_code code, const char *sentence);
void input_orphan(struct command *c); /* nobody waits for the answers any more */
uint64_t input_next(const struct command *c);

/* terminal.c */
int terminal_open(const struct identity *identity, uint16_t rows, uint16_t cols, int *slave); /* the master, or -1 */
bool terminal_resize(int master, uint16_t rows, uint16_t cols);
bool terminal_tells_resize(int master); /* whether the kernel signals the foreground of a terminal by itself */

/* stream.c */
void stream_open(struct agent *a, const struct request *r);
void stream_request(struct agent *a, const struct request *r); /* DATA, CREDIT, FINISH, CLOSE */
void stream_event(struct agent *a, struct source *from, uint32_t events);
bool stream_reaped(struct agent *a, pid_t pid, int wait_status); /* whether it was a worker */
void streams_stop(struct agent *a); /* ends them and says so */
void streams_drop(struct agent *a); /* their client has gone */
void streams_tick(struct agent *a, uint64_t now);
uint64_t streams_next(const struct agent *a);
void streams_free(struct agent *a);

/* hold.c: everything stands still for a snapshot */
void hold_begin(struct agent *a, uint32_t max_ms);
void hold_release(struct agent *a); /* fine when nothing is held */
bool hold_stands(const struct agent *a); /* nothing moves, or nothing is held any more */
void hold_tick(struct agent *a, uint64_t now);
uint64_t hold_next(const struct agent *a);

/* memory.c: the kill when memory runs out, and the counts */
void memory_kill(struct agent *a, uint64_t now);
void memory_stats(struct agent *a, uint32_t request);

/* requests.c */
void request_handle(struct agent *a, const uint8_t *frame, size_t len);

/* connection.c: descriptors 0 and 1. Both return false when the connection is over. */
bool connection_receive(struct agent *a, bool hung_up);
bool connection_send(struct agent *a);

/* agent.c */
void source_add(struct agent *a, struct source *s, uint32_t events);
void source_change(struct agent *a, struct source *s, uint32_t events);
void source_close(struct source *s);
void agent_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
int agent_main(int argc, char **argv);

#endif
