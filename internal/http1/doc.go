// Package http1 is the HTTP/1.1 server that clients speak to.
//
// # Goal
//
// A client costs as little as possible: no goroutine beside the one of its
// connection, no timer and no context per request, one write per answer or burst of
// events, and nothing but a stack while an answer is silent. A client's disconnect is
// noticed at once, however many unread bytes lie before it. The caller of the package
// chooses the answer to malformed requests.
//
// Handlers are those of net/http, with its Request and ResponseWriter, and the
// methods that [net/http.ResponseController] looks for.
//
// # Non-goals
//
// TLS and HTTP/2: left to a load balancer. Upgrades, CONNECT, trailers, informational
// answers other than 100, hijacking.
//
// # Differences from net/http
//
// Parsing follows RFC 9112. Two of the leniencies that it allows are implemented: a line
// of a head may end in a bare LF, and empty lines before a request are skipped. So this
// package accepts nothing that net/http refuses; the fuzz test compares the two. It
// differs from net/http as follows:
//
//   - Targets are paths, or http and https URLs of a host, or the asterisk of an
//     OPTIONS.
//   - HTTP/1.0 has one request a connection. An answer's Content-Type is not guessed.
//   - A Content-Length beside a Transfer-Encoding is refused; net/http drops it.
//   - A request, its header and the writer of its answer belong to the connection:
//     they must not be used once the handler has returned. Strings in them may be
//     kept.
//   - The context of requests is that of the connection. It does not end when a
//     handler returns, so callbacks registered on it must be removed. Its method
//     AfterFunc costs less than context.AfterFunc.
//   - Both sides of a connection are used at once: a handler may answer and go on
//     reading the body, in another goroutine too, unless the client waits for 100
//     Continue: sending that is a write like others. What a handler leaves unread is
//     read and discarded, within bounds, or the connection is closed.
//   - Deadlines are kept by this package and reach the socket only when something
//     has to be waited for.
//
// # Life of a connection
//
//	accept   counted, watched for a disconnect (on Linux by one epoll for all;
//	         elsewhere by a goroutine per request)
//	head     read into a pooled buffer, within MaxHeaderBytes and HeaderTimeout
//	handler  on the connection's goroutine; the body is read on demand
//	answer   collected in a pooled buffer until it is flushed, full or complete
//	rest     the rest of the body is read or the connection is closed; else it waits
//	         for the next head, without a buffer, for IdleTimeout
//	end      the answer is written, the connection is closed for writing, and read a
//	         moment longer if the client may still be sending: a reset could destroy
//	         the answer on its way
//
// # Eviction
//
// An accepted connection already has its file, so room is made afterwards: if files are
// short, an idle connection is evicted, that is, one that waits for its client and whose
// request does not run yet (see type waiting for the order, and Server.waitForRoom for
// telling a burst of clients from a flood of silent connections). Its goroutine wakes up,
// answers 503 if it has answered nothing yet, and closes it. A handler calls Running on
// its ResponseWriter when its connection must not be evicted any more.
//
// # Untrusted input
//
// A head is bounded in bytes and lines, a chunked body's framing in proportion to
// its payload, what is read after an answer in bytes and time. This package logs nothing
// that a request contains.
package http1
