// Package upstream carries requests to the engines and their answers back.
//
// Goal: the cheapest correct HTTP/1.1 client for one job, many short requests
// and long silent event streams to a few hundred known servers. A request goes
// out in one system call, an answer is handed on as it lies in the connection's
// buffer, a silent stream holds no buffer, and a caller that leaves is seen by
// the engine at once, whatever the phase.
//
// Non-goals: redirects, cookies, proxies, compression (no Accept-Encoding is
// added and nothing is decompressed), CONNECT and protocol upgrades. The package
// does not know what a body means and does not choose among engines.
//
// # Roles
//
// An [Endpoint] is one engine's base URL with its transport settings and its own
// pool of connections. [Endpoint.Do] sends one [Request] and returns a
// [Response] as soon as the response head is in. The [Body] of the response is
// read piece by piece.
//
// # Life of a request
//
//	resp, err := ep.Do(ctx, &upstream.Request{
//		Method: "POST", Path: "/v1/chat/completions",
//		Header: upstream.Header{{Name: "Content-Type", Value: "application/json"}},
//		Body:   [][]byte{before, spliced, after},
//		Limits: upstream.Limits{Header: 30 * time.Second},
//	})
//	if err != nil {
//		return err // always *upstream.Error
//	}
//	defer resp.Body.Close()
//	for {
//		piece, err := resp.Body.Next()
//		if err == io.EOF {
//			break // whole: the connection is already back in the pool
//		}
//		if err != nil {
//			return err // broken off: the client must be told
//		}
//		client.Write(piece)
//		if resp.Body.Buffered() == 0 && !resp.Body.Done() {
//			client.Flush()
//		}
//	}
//
// When ctx ends the connection is closed at once and Do or Next return an error
// for which errors.Is(err, ctx.Err()) holds. Nothing of a request outlives the
// return of a failed Do, of the Next that returned an error, or of Close.
//
// # What is resent
//
// A connection is looked at before it is used again. If it then still dies
// before a byte of the answer, the request is sent once more on a new
// connection, but only if the first sending cannot have reached the engine:
// nothing was written, or the engine closed in an orderly way and acknowledged
// none of the request's bytes in doing so, or the method is GET or HEAD. In every
// other case, a reset included, the error says Sent, and whether to try again is
// for the caller to decide. So an engine never runs the same request twice because
// of this package.
//
// Untrusted input: engines are not trusted to speak HTTP well. Every size of the
// answer but the body's own is bounded, and what is not clearly HTTP/1.1 is an
// error of kind [KindMalformed] or [KindTooLarge].
package upstream
