// Package tokens estimates the length of prompts and answers, in tokens, without a
// tokenizer.
//
// # Goal
//
// A number at the gate that is near the engine's own, for less than what the
// gate costs. Token ids are counted; text is estimated from its bytes by
// coefficients that each model learns from what its engines report about the
// prompts they answered.
//
// # Non-goals
//
// Exact counts of text: they need the model's own tokenizer and its chat template.
// Cached tokens: how much of a prompt a worker has cached is known to a prefix index
// only.
//
// # Life of a request
//
//	prompt := tokens.Measure(peeked)              // while the body is there
//	ticket.PromptTokens = estimator.Estimate(pool, &prompt)
//	… the answer streams; after each piece
//	if n := output.Seen(scan.DataEvents, scan.Usage.CompletionTokens); n > 0 { … grow by n blocks … }
//	… the answer is over, and was good
//	estimator.Observe(pool, &prompt, ticket.PromptTokens, usage)
//
// # What is learned
//
// Six coefficients a model: tokens of a byte of ASCII, of a byte of other text,
// of a byte of tool descriptions, of a message's frame, of the template around a
// prompt, and of a part that is no text. A report moves each by its share in the
// estimate, in the logarithm: for n reports that are off by the same factor the
// error falls by a constant factor each. Engines are not trusted: a report counts
// only up to a few times the deviation that is usual for the model, no
// coefficient leaves its bounds, and what cannot be true is left out.
//
// # Locks
//
// Estimates take none. Observe takes the model's, and the table's for a model
// that is new; neither calls out.
package tokens
