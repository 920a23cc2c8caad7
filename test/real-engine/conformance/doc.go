// Package conformance holds one table of requests to which an engine and its
// simulation must answer alike.
//
// # Goal
//
// A simulator is worth what it shares with the real engine. requests.json lists
// requests; vllm.golden says how a real vLLM answered each: its status, headers
// that mean something, and the shape of its body or of its events. The ordinary
// tests ask the simulator, the tests with the build tag realengine the real engine.
// Where they differ the simulator is wrong, or the engine's version has changed.
//
// # Non-goals
//
// Texts, counts and times. A shape (see Shape) has the keys, in their order, and
// the kinds of the values, and of few keys the values themselves.
//
// # Recording
//
//	go test -tags realengine ./test/real-engine -run TestConformance -record
package conformance
