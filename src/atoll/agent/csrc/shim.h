/* The sandbox's keeper on the host: declared in the order of the layers, the loop on top. */
#ifndef ATOLL_SHIM_H
#define ATOLL_SHIM_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bytes.h"
#include "memory_stat.h"
#include "wire.h"

#define NO_TIME UINT64_MAX

enum {
    RELAY_BYTES = 1024 * 1024,     /* from the agent, not yet taken by the client */
    TO_AGENT_BYTES = 512 * 1024,
    KILL_LOOK_MS = 5,
    MEMORY_LOOK_MS = 20,
    LAST_WORDS_MS = 1000           /* for the client to take the answer to KILL */
};

/* shim_relay.c: frames between the one client and the agent */
struct relay {
    int listener, client, agent; /* -1: none */
    struct queue client_in;      /* what this client sent, not yet looked at */
    struct queue to_agent;       /* whole frames; outlives the client, so that none is cut in the middle */
    struct queue own_out;        /* the shim's own answers to the client */
    uint8_t *buffer;             /* from the agent: [head, approved) goes to the client, [approved, tail) is an unfinished frame */
    size_t head, approved, tail;
    uint32_t epoch;
    bool matched;                /* the agent has answered this client's HELLO */
    bool kill_asked;
    uint32_t kill_request;
};

void relay_init(struct relay *r, int listener, int agent);
void relay_poll(const struct relay *r, struct pollfd fds[3]); /* listener, client, agent */
void relay_run(struct relay *r, const struct pollfd fds[3]);
void relay_send_oom(struct relay *r);
void relay_last_words(struct relay *r); /* answers the KILL, waits a little for the client to take all */
void relay_free(struct relay *r);

/* shim_memory.c: tells when the sandbox holds more memory than it may */
struct memory_watch {
    int version; /* 1, 2; 0: none */
    const char *cgroup;
    uint64_t limit, reserve;
    int directory;
    int event, oom_event; /* eventfd or inotify; -1: none */
    uint64_t look_at;
    uint64_t hard_limit;  /* v1: memory.limit_in_bytes as it was found */
    bool raised;
};

bool memory_watch_open(struct memory_watch *m, const char **failed);
void memory_watch_poll(const struct memory_watch *m, struct pollfd fds[2]);
bool memory_watch_run(struct memory_watch *m, const struct pollfd fds[2], uint64_t now); /* whether a process has to die */
bool memory_watch_saw_kill(const struct memory_watch *m); /* the kernel killed in this cgroup */

/* shim_calm.c: lets an idle sandbox sleep */
struct calm {
    const char *cgroup; /* whose processes are the sandbox's; NULL: leave it as it is */
    bool calm;
    uint64_t quiet_since, look_at, measured_at, ticks;
};

void calm_init(struct calm *c, uint64_t now);
void calm_wake(struct calm *c, uint64_t now); /* before the client's words reach the agent */
void calm_run(struct calm *c, uint64_t now);

/* shim_sandbox.c: the command line that is kept, its cgroups, and its end */
struct sandbox {
    char **argv;
    const char **joins, **kill_cgroups; /* NULL-terminated */
    bool hide_proc_sys_net;
    const char *meminfo; /* what is to be seen as /proc/meminfo, or NULL */
    pid_t pid; /* 0 once reaped */
    int wait_status;
};

bool sandbox_start(struct sandbox *s, int directory, int connection, const char **failed);
void sandbox_reap(struct sandbox *s); /* every child and adopted orphan that has ended */
bool sandbox_kill_round(struct sandbox *s); /* one round; returns whether anything was left */
bool write_file(int directory, const char *name, const char *text); /* to a temporary name, then renamed */

int shim_main(int argc, char **argv);

#endif
