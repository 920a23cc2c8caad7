// Package generate has requests to engines that take token ids and give token ids: what a
// request of the API asks of such an engine ([Request]), what the engine tells while it
// generates ([Event]), and the API's answer that becomes of it ([Answer]).
//
// It knows nothing of how an engine is spoken to. A dialect tells the engine what stands in
// Request and Sampling, makes Events of what comes back, and hands them to an Answer, whose
// bytes go to the client as those of an engine over HTTP would. An engine that breaks the
// rules of its answers, or tells that it failed, ends the Answer with an [EngineError].
//
// read.go has how a Request is made of a body: read_fields.go takes the fields as they are,
// read_sampling.go and read_prompt.go what becomes of them.
//
// answer.go has the life of an Answer, sequence.go what becomes of one sequence's tokens,
// answer_stream.go and answer_whole.go the bytes, logprobs.go those of log probabilities.
package generate
