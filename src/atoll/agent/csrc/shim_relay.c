#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <stdlib.h>

#include "clock.h"
#include "shim.h"

enum { CLIENT_IN_BYTES = 2 * FRAME_BYTES_MAX, OWN_OUT_BYTES = 64 * 1024 };

void relay_init(struct relay *r, int listener, int agent) {
    *r = (struct relay){.listener = listener, .client = -1, .agent = agent, .buffer = must_alloc(RELAY_BYTES)};
}

static bool try_later(void) { return errno == EAGAIN || errno == EINTR; }

static void drop_client(struct relay *r) {
    if (r->client >= 0) close(r->client);
    r->client = -1;
    r->matched = false;
    queue_free(&r->client_in);
    queue_free(&r->own_out);
    /* What was approved was for this client, a frame begun in the middle included. */
    r->head = r->approved;
}

static void drop_agent(struct relay *r) {
    if (r->agent >= 0) close(r->agent);
    r->agent = -1;
    r->tail = r->approved;
}

/* The newest connection wins: after a crash the client cannot know that its predecessor's is still open. */
static void accept_client(struct relay *r) {
    int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    drop_client(r);
    r->client = fd;
    int bytes = RELAY_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    size_t mark = frame_begin(&r->to_agent, REQ_HELLO, 0);
    put_u32(&r->to_agent, ++r->epoch);
    frame_end(&r->to_agent, mark);
}

static void answer_invalid(struct relay *r, uint32_t request) {
    static const char sentence[] = "Clients may not send this.";
    if (queue_len(&r->own_out) > OWN_OUT_BYTES) return; /* it sends without reading; it gets no more of them */
    size_t mark = frame_begin(&r->own_out, ANS_ERROR, request);
    put_u8(&r->own_out, ERR_INVALID_REQUEST);
    put_bytes(&r->own_out, sentence, sizeof sentence - 1);
    frame_end(&r->own_out, mark);
}

static void take_frame(struct relay *r, const uint8_t *frame, size_t len) {
    uint8_t type = frame[4];
    if (type == REQ_KILL) {
        r->kill_asked = true;
        r->kill_request = load_u32(frame + 5);
    } else if (type < REQ_START) {
        answer_invalid(r, load_u32(frame + 5)); /* HELLO and OOM are the shim's own */
    } else {
        put_raw(&r->to_agent, frame, len);
    }
}

/* A KILL has to be heard also while the agent is frozen and takes nothing. */
static void hear_kill(struct relay *r) {
    size_t at = r->client_in.head;
    while (r->client_in.tail - at >= FRAME_HEAD) {
        const uint8_t *frame = r->client_in.data + at;
        size_t len = load_u32(frame) + (size_t)4;
        if (len < FRAME_HEAD || len > FRAME_BYTES_MAX) return;
        if (frame[4] == REQ_KILL) take_frame(r, frame, len);
        at += len;
        if (at > r->client_in.tail) return;
    }
}

static void take_frames(struct relay *r) {
    while (queue_len(&r->client_in) >= 4) {
        const uint8_t *frame = r->client_in.data + r->client_in.head;
        size_t len = load_u32(frame) + (size_t)4;
        if (len < FRAME_HEAD || len > FRAME_BYTES_MAX) {
            drop_client(r);
            return;
        }
        if (queue_len(&r->client_in) < len) return;
        if (queue_len(&r->to_agent) >= TO_AGENT_BYTES) {
            hear_kill(r);
            return;
        }
        take_frame(r, frame, len);
        queue_consume(&r->client_in, len);
    }
}

static void read_client(struct relay *r) {
    size_t room = CLIENT_IN_BYTES - queue_len(&r->client_in);
    ssize_t got = recv(r->client, queue_reserve(&r->client_in, room), room, 0);
    if (got > 0) {
        queue_commit(&r->client_in, (size_t)got);
        take_frames(r);
    } else if (got == 0 || !try_later()) {
        drop_client(r);
    }
}

static void write_agent(struct relay *r) {
    while (queue_len(&r->to_agent) > 0) {
        ssize_t put = send(r->agent, r->to_agent.data + r->to_agent.head, queue_len(&r->to_agent), MSG_NOSIGNAL);
        if (put > 0) {
            queue_consume(&r->to_agent, (size_t)put);
            continue;
        }
        if (!try_later()) queue_free(&r->to_agent); /* it has ended; the rest of what it said can still be read */
        return;
    }
}

static bool is_our_hello(const struct relay *r, const uint8_t *frame, size_t len) {
    return frame[4] == ANS_HELLO && len >= FRAME_HEAD + 4 && load_u32(frame + FRAME_HEAD) == r->epoch;
}

static void approve_frames(struct relay *r) {
    while (r->tail - r->approved >= FRAME_HEAD) {
        const uint8_t *frame = r->buffer + r->approved;
        size_t len = load_u32(frame) + (size_t)4;
        if (len < FRAME_HEAD || len > FRAME_BYTES_MAX) {
            drop_agent(r); /* not our agent's words any more; this ends it */
            return;
        }
        if (r->tail - r->approved < len) return;
        if (!r->matched && r->client >= 0) r->matched = is_our_hello(r, frame, len);
        r->approved += len;
        if (!r->matched) r->head = r->approved;
    }
}

static void compact(struct relay *r) {
    if (r->head < r->approved || r->head == 0) return;
    memmove(r->buffer, r->buffer + r->head, r->tail - r->head);
    r->tail -= r->head;
    r->head = r->approved = 0;
}

static void read_agent(struct relay *r) {
    compact(r);
    if (r->tail == RELAY_BYTES) return;
    ssize_t got = recv(r->agent, r->buffer + r->tail, RELAY_BYTES - r->tail, 0);
    if (got > 0) {
        r->tail += (size_t)got;
        approve_frames(r);
    } else if (got == 0 || !try_later()) {
        drop_agent(r);
    }
}

static void write_client(struct relay *r) {
    while (r->client >= 0 && (r->head < r->approved || queue_len(&r->own_out) > 0)) {
        bool own = r->head == r->approved; /* only between frames */
        const uint8_t *from = own ? r->own_out.data + r->own_out.head : r->buffer + r->head;
        size_t len = own ? queue_len(&r->own_out) : r->approved - r->head;
        ssize_t put = send(r->client, from, len, MSG_NOSIGNAL);
        if (put < 0) {
            if (!try_later()) drop_client(r);
            return;
        }
        if (own)
            queue_consume(&r->own_out, (size_t)put);
        else
            r->head += (size_t)put;
    }
}

void relay_poll(const struct relay *r, struct pollfd fds[3]) {
    bool client_waits = r->head < r->approved || queue_len(&r->own_out) > 0;
    bool room = queue_len(&r->client_in) < CLIENT_IN_BYTES;
    bool agent_room = r->tail < RELAY_BYTES || r->head == r->approved;
    fds[0] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = r->client, .events = (short)((room ? POLLIN : 0) | (client_waits ? POLLOUT : 0))};
    fds[2] = (struct pollfd){.fd = r->agent,
                             .events = (short)((agent_room ? POLLIN : 0) | (queue_len(&r->to_agent) ? POLLOUT : 0))};
    if (fds[2].events == 0) fds[2].fd = -1; /* a hang-up would be reported without pause while the client holds up the rest */
}

void relay_run(struct relay *r, const struct pollfd fds[3]) {
    if (r->agent >= 0 && fds[2].fd >= 0 && fds[2].revents & ~POLLOUT) read_agent(r);
    if (r->client >= 0 && fds[1].revents & ~POLLOUT) read_client(r);
    if (fds[0].revents) accept_client(r);
    if (r->agent >= 0) {
        write_agent(r);
        take_frames(r);
    }
    write_client(r);
}

void relay_send_oom(struct relay *r) {
    if (queue_len(&r->to_agent) >= TO_AGENT_BYTES / 2) return; /* it does not listen; another one would not help */
    frame_end(&r->to_agent, frame_begin(&r->to_agent, REQ_OOM, 0));
}

void relay_last_words(struct relay *r) {
    if (r->client < 0) return;
    if (r->agent >= 0) read_agent(r);
    if (r->kill_asked) frame_end(&r->own_out, frame_begin(&r->own_out, ANS_OK, r->kill_request));
    uint64_t until = monotonic_ms() + LAST_WORDS_MS;
    for (uint64_t now; (now = monotonic_ms()) < until && r->client >= 0;) {
        write_client(r);
        if (r->client < 0 || (r->head == r->approved && queue_len(&r->own_out) == 0)) return;
        struct pollfd fd = {.fd = r->client, .events = POLLOUT};
        poll(&fd, 1, (int)(until - now));
    }
}

void relay_free(struct relay *r) {
    drop_client(r);
    drop_agent(r);
    queue_free(&r->to_agent);
    free(r->buffer);
}
