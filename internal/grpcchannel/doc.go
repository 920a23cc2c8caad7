// Package grpcchannel carries calls to an engine that speaks gRPC: it implements
// [upstream.Channel] with grpc-go. It is the only package that knows of grpc-go's client.
//
// Goal: a call costs little more than grpc-go's own receive path, its errors say what the
// errors of HTTP workers say, and whoever leaves is seen by the engine at once.
//
// Non-goals: choosing among engines, retries, what messages mean.
//
// # Connections
//
// A [Channel] has one connection as long as it carries up to [streamsPerConn] calls, then
// more, up to [maxConns]. Calls are packed on few connections: the frames of many streams
// then come with one system call. Connections are dialed when a call needs one. A dial that
// fails fails all calls that wait for it, and the next call dials anew; there is no back-off
// here, since health checks and breakers of the callers see to that. An idle connection is
// kept while it is the only one.
//
// Flow control: an engine may send [streamWindow] bytes of one call before they are read,
// which bounds the memory of a call whose client does not read, and is not exceeded by
// grpc-go but for a single message that is larger. Fixed windows also turn off the pings by
// which grpc-go estimates bandwidth: servers end connections that ping often. Keep-alive
// pings are off for the same reason; a machine that vanished is noticed by TCP.
//
// # Life of a call
//
// Stream sends the message and returns. Next waits for a message on the caller's own
// goroutine. The call ends, and its place on the connection with it, when Next returns an
// error or Close is called. A caller's context ends it through a listener where it is an
// [upstream.Notifier]. A stream that the engine tells to have never looked at, as one
// refused by a GOAWAY, is sent once more by grpc-go itself, on a new connection.
package grpcchannel
