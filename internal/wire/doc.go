// Package wire has what both sides of sluice need to read HTTP/1.1 by themselves:
// the words of a head, the framing of a chunked body, buffers that a silent
// connection does not hold, and system calls that do not wait.
//
// It is at least as strict as net/http about what it takes: two readers that
// differ about where a message ends see two different messages. It knows neither
// requests nor responses; see packages http1 (clients) and upstream (engines).
package wire
