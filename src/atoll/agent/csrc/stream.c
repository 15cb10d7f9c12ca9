/* Streams: the agent copies bytes between the client's frames and a worker's pipes or a port, and knows nothing of what
 * they mean. A slow end holds up its own stream only: what the client may send is granted beforehand, what it gets is
 * read no faster than it grants. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

enum { PIPE_BYTES = 1024 * 1024, KEPT_BYTES = 1024 * 1024, PORTIONS = 4, CODE_STOPPED = 254, CODE_PROTOCOL = 255 };

static struct stream *find(struct agent *a, uint32_t id) {
    for (struct stream *s = a->streams; s; s = s->next)
        if (s->id == id && !s->closed && !s->over) return s;
    return NULL;
}

/* While bytes stream through, the queues keep their memory: pages given back and asked for again cost more than the bytes. */
static void keep_memory(struct agent *a, struct stream *s, size_t bytes) {
    queue_keep(&a->in, bytes);
    queue_keep(&a->out, bytes);
    queue_keep(&s->pending, bytes);
}

static void say_number(struct agent *a, uint8_t type, uint32_t id, uint32_t value) {
    size_t mark = frame_begin(&a->out, type, id);
    put_u32(&a->out, value);
    frame_end(&a->out, mark);
}

static void watch(struct agent *a, struct source *source, uint32_t *watched, uint32_t events) {
    if (source->fd < 0 || *watched == events) return;
    /* Never left in with no events: epoll would report a hang-up without pause. */
    if (events == 0)
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    else if (*watched == 0)
        source_add(a, source, events);
    else
        source_change(a, source, events);
    *watched = events;
}

static void close_in(struct agent *a, struct stream *s) {
    watch(a, &s->in, &s->in_events, 0); /* both descriptors of a port are one socket: epoll does not forget it by itself */
    source_close(&s->in);
    queue_free(&s->pending);
}

static void close_out(struct agent *a, struct stream *s) {
    watch(a, &s->out, &s->out_events, 0);
    source_close(&s->out);
}

static void say_end(struct agent *a, struct stream *s) {
    if (!s->closed) {
        size_t mark = frame_begin(&a->out, STREAM_END, s->id);
        put_u8(&a->out, s->code);
        frame_end(&a->out, mark);
    }
    s->over = true;
}

/* Nobody listens any more: a worker that sees its input cut before the end undoes what it has begun. */
static void abandon(struct agent *a, struct stream *s) {
    close_in(a, s);
    close_out(a, s);
    s->closed = true;
    s->until = monotonic_ms() + STREAM_CLOSE_MS;
    if (s->pid == 0) s->over = true;
}

static void fail(struct agent *a, struct stream *s, uint8_t code) {
    s->code = code;
    say_end(a, s);
    s->over = false;
    abandon(a, s);
}

/* The end is reached when both directions are, and a worker has said how it went. */
static void settle(struct agent *a, struct stream *s) {
    if (s->over || s->pid != 0 || s->out.fd >= 0) return;
    if (s->kind == STREAM_PORT && s->in.fd >= 0) return;
    close_in(a, s);
    say_end(a, s);
}

static void write_pending(struct agent *a, struct stream *s) {
    while (s->in.fd >= 0 && queue_len(&s->pending) > 0) {
        ssize_t put = write(s->in.fd, s->pending.data + s->pending.head, queue_len(&s->pending));
        if (put > 0) {
            queue_consume(&s->pending, (size_t)put);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return;
        close_in(a, s); /* nobody takes it any more; how it ended is told by the other direction */
    }
    if (s->in.fd < 0) queue_free(&s->pending);
    if (queue_len(&s->pending) > 0 || !s->finished || s->in.fd < 0) return;
    if (s->kind == STREAM_PORT) shutdown(s->in.fd, SHUT_WR);
    close_in(a, s);
}

/* What was written makes room; input that nobody takes any more counts as written. */
static void grant(struct agent *a, struct stream *s) {
    size_t waiting = queue_len(&s->pending);
    if (s->finished || s->closed || s->over || s->taken < waiting + s->room / 2) return;
    uint32_t more = s->taken - (uint32_t)waiting;
    say_number(a, STREAM_CREDIT, s->id, more);
    s->window += more;
    s->taken -= more;
}

static bool open_port(struct agent *a, struct stream *s, int family);

static void take_input(struct agent *a, struct stream *s) {
    if (s->connecting) {
        int error = 0;
        socklen_t len = sizeof error;
        getsockopt(s->in.fd, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error) {
            bool other = error == ECONNREFUSED && s->family == AF_INET;
            close_in(a, s);
            close_out(a, s);
            if (!other || !open_port(a, s, AF_INET6)) fail(a, s, (uint8_t)error);
            return;
        }
        s->connecting = false;
        s->until = NEVER;
        say_number(a, STREAM_OPENED, s->id, s->room);
    }
    write_pending(a, s);
    grant(a, s);
    settle(a, s);
}

static bool may_send(const struct agent *a, const struct stream *s) {
    return s->credit > 0 && queue_len(&a->out) < STREAM_HIGH_WATER;
}

/* Returns whether there is most likely more. */
static bool take_portion(struct agent *a, struct stream *s) {
    size_t want = s->credit < STREAM_BYTES_PER_FRAME ? (size_t)s->credit : STREAM_BYTES_PER_FRAME;
    size_t mark = frame_begin(&a->out, STREAM_DATA, s->id);
    ssize_t got = read(s->out.fd, queue_reserve(&a->out, want), want);
    if (got > 0) {
        queue_commit(&a->out, (size_t)got);
        frame_end(&a->out, mark);
        s->credit -= (uint64_t)got;
        return (size_t)got == want;
    }
    frame_cancel(&a->out, mark);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    close_out(a, s);
    if (s->kind == STREAM_PORT && got < 0) {
        fail(a, s, (uint8_t)errno);
        return false;
    }
    if (s->kind == STREAM_PORT) frame_end(&a->out, frame_begin(&a->out, STREAM_FINISH, s->id));
    settle(a, s);
    return false;
}

/* Some portions a round, so that streams take turns, and the shim is not woken for each. */
static void take_output(struct agent *a, struct stream *s) {
    for (int portion = 0; portion < PORTIONS && s->out.fd >= 0 && may_send(a, s); portion++)
        if (!take_portion(a, s)) return;
}

void stream_event(struct agent *a, struct source *from, uint32_t events) {
    struct stream *s = from->stream;
    if (s->over) return;
    if (from == &s->in) {
        if (s->kind == STREAM_FILES && events & EPOLLERR && !s->closed) close_in(a, s); /* the worker reads no more */
        take_input(a, s);
    } else {
        take_output(a, s);
    }
}

static void arm(struct agent *a, struct stream *s) {
    bool writes = s->connecting || queue_len(&s->pending) > 0;
    watch(a, &s->in, &s->in_events, writes ? EPOLLOUT : 0);
    watch(a, &s->out, &s->out_events, !s->connecting && may_send(a, s) ? EPOLLIN : 0);
}

void streams_tick(struct agent *a, uint64_t now) {
    for (struct stream **link = &a->streams; *link;) {
        struct stream *s = *link;
        if (now >= s->until) {
            s->until = now + STREAM_CLOSE_MS;
            if (s->connecting)
                fail(a, s, ETIMEDOUT);
            else if (s->pid)
                kill(s->pid, SIGKILL);
        }
        if (!s->over) {
            arm(a, s);
            link = &s->next;
            continue;
        }
        close_in(a, s);
        close_out(a, s);
        *link = s->next;
        a->stream_count--;
        a->waiters_due = true;
        if (a->stream_count == 0) keep_memory(a, s, 0);
        free(s);
    }
}

uint64_t streams_next(const struct agent *a) {
    uint64_t next = NEVER;
    for (const struct stream *s = a->streams; s; s = s->next) {
        if (s->over) return 0;
        if (s->until < next) next = s->until;
        /* Room for more was made after the last look at it. */
        if (s->out.fd >= 0 && s->out_events == 0 && !s->connecting && may_send(a, s)) return 0;
    }
    return next;
}

/* By IPv4 first, then by IPv6: what a program calls localhost may be either. */
static bool open_port(struct agent *a, struct stream *s, int family) {
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(s->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    s->in.fd = fd;
    s->out.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    s->connecting = true;
    s->family = family;
    s->until = monotonic_ms() + STREAM_CONNECT_MS;
    if (s->out.fd < 0 || (connect(fd, address, family == AF_INET ? sizeof v4 : sizeof v6) < 0 && errno != EINPROGRESS)) {
        close_in(a, s);
        close_out(a, s);
        return false;
    }
    return true;
}

static void widen(int fd) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
}

static bool open_worker(struct agent *a, struct stream *s, char **arguments) {
    size_t count = 0;
    while (arguments[count]) count++;
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0) return false;
    if (pipe2(out, O_CLOEXEC) < 0) {
        close(in[0]);
        close(in[1]);
        return false;
    }
    char **argv = must_alloc((count + 3) * sizeof *argv);
    static char files[] = "files", *nothing[] = {NULL};
    argv[0] = (char *)a->program;
    argv[1] = files;
    memcpy(argv + 2, arguments, count * sizeof *argv);
    struct spawn_plan plan = {argv, nothing, "/", {in[0], out[1], a->null_fd}, false, ++a->last_tag};
    enum spawn_outcome outcome = spawn_process(&a->identity, &plan, &s->pid);
    free(argv);
    close(in[0]);
    close(out[1]);
    s->in.fd = in[1];
    s->out.fd = out[0];
    if (outcome == SPAWN_OK) {
        widen(s->in.fd);
        widen(s->out.fd);
        return true;
    }
    s->pid = 0;
    close_in(a, s);
    close_out(a, s);
    return false;
}

void stream_open(struct agent *a, const struct request *r) {
    if (a->stream_count >= MAX_STREAMS) {
        answer_error(a, r->id, ERR_TOO_MANY_EXECUTIONS, "128 transfers are under way already.");
        return;
    }
    if (a->stopping || r->id == 0 || find(a, r->id)) {
        answer_error(a, r->id, a->stopping ? ERR_UNKNOWN : ERR_INVALID_REQUEST, "No transfer can begin now.");
        return;
    }
    struct stream *s = must_alloc(sizeof *s);
    s->id = r->id;
    s->kind = r->kind;
    s->in = (struct source){SOURCE_STREAM, -1, {.stream = s}};
    s->out = s->in;
    s->credit = r->credit;
    s->port = r->port;
    s->room = a->stream_count < WIDE_STREAMS ? STREAM_WINDOW_BYTES : STREAM_SMALL_WINDOW_BYTES;
    s->window = s->room;
    s->until = NEVER;
    if (!(r->kind == STREAM_PORT ? open_port(a, s, AF_INET) || open_port(a, s, AF_INET6) : open_worker(a, s, r->argv))) {
        answer_error(a, r->id, ERR_UNKNOWN, r->kind == STREAM_PORT ? "The port does not answer." : "No process could be made.");
        free(s);
        return;
    }
    if (r->kind == STREAM_FILES) say_number(a, STREAM_OPENED, s->id, s->room);
    s->next = a->streams;
    a->streams = s;
    a->stream_count++;
    keep_memory(a, s, KEPT_BYTES);
}

static void take_data(struct agent *a, struct stream *s, struct span data) {
    if (data.len > s->window || s->finished || s->connecting) {
        fail(a, s, CODE_PROTOCOL);
        return;
    }
    s->window -= data.len;
    s->taken += data.len;
    if (s->in.fd >= 0) {
        /* A worker is told the length of every part, so that it can tell the end of its input from its loss. */
        if (s->kind == STREAM_FILES) put_u32(&s->pending, data.len);
        put_raw(&s->pending, data.data, data.len);
    }
    take_input(a, s);
}

void stream_request(struct agent *a, const struct request *r) {
    struct stream *s = find(a, r->id);
    if (s == NULL) return; /* it has ended meanwhile, and END has been said */
    switch (r->type) {
    case REQ_DATA:
        take_data(a, s, r->data);
        break;
    case REQ_CREDIT:
        s->credit += r->credit;
        break;
    case REQ_FINISH:
        if (s->finished || s->connecting) break;
        if (s->kind == STREAM_FILES && s->in.fd >= 0) put_u32(&s->pending, 0);
        s->finished = true;
        take_input(a, s);
        break;
    default:
        abandon(a, s);
    }
}

bool stream_reaped(struct agent *a, pid_t pid, int wait_status) {
    for (struct stream *s = a->streams; s; s = s->next) {
        if (s->pid != pid) continue;
        s->pid = 0;
        s->code = (uint8_t)(WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
        if (s->closed)
            s->over = true;
        else
            settle(a, s);
        return true;
    }
    return false;
}

void streams_stop(struct agent *a) {
    for (struct stream *s = a->streams; s; s = s->next)
        if (!s->closed && !s->over) fail(a, s, CODE_STOPPED);
}

void streams_drop(struct agent *a) {
    for (struct stream *s = a->streams; s; s = s->next)
        if (!s->closed && !s->over) abandon(a, s);
}

void streams_free(struct agent *a) {
    while (a->streams) {
        struct stream *s = a->streams;
        a->streams = s->next;
        close_in(a, s);
        close_out(a, s);
        free(s);
    }
    a->stream_count = 0;
}
