// Package vllmgrpc is vLLM spoken to by gRPC (vllm serve --grpc), as a dialect: the engine takes
// token ids and gives token ids.
//
// A call of a leg becomes one call of Generate, or one for each sequence where the engine
// cannot take them together (call.go, request.go). What it sends is read without allocating
// (message.go), turned into the API's bytes by package generate, and handed on as the body of
// an answer (body.go), so that whoever relays answers need not know of tokens. Facts, health,
// load and the model's files are asked for by further methods (facts.go, text.go), the events
// of the KV cache come by a stream (kvstream.go).
//
// What the contract cannot say: which LoRA adapter a request is for. Requests for adapters do
// not reach these engines, which report none.
//
// Engines are not trusted: a stream that breaks the rules (a sequence that ends twice or not at
// all, an index or id out of range, a message that cannot be read) is an error of kind
// malformed, and all calls of the leg are cancelled.
package vllmgrpc
