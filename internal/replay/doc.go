// Package replay runs a trace of requests through the real gate, policies and index of KV
// caches, with modelled engines, in virtual time. It answers what another policy, another
// limit or another fleet would have made of the same requests.
//
// The gate is [admission.Core], driven as [admission.Gate] drives it. The policies are those
// of internal/policy, the index is that of internal/kv. Only engines and time are modelled:
// see engine.go for what the model has and leaves out.
//
// A replay has no goroutine, and reads no clock and no source of random numbers but its
// own: the same trace and the same options give the same result.
package replay
