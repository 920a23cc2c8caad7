// Package tokens estimates the length of prompts and answers, in tokens, without a
// tokenizer.
//
// # Goal
//
// An estimate for the gate that is near the engine's own count and costs less than the
// gate itself. Token ids are counted; text is estimated from its bytes by
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
//	prompt := tokens.Measure(peeked)              // while the body is in memory
//	ticket.PromptTokens = estimator.Estimate(pool, &prompt)
//	… the answer streams; after each piece
//	if n := output.Seen(scan.DataEvents, scan.Usage.CompletionTokens); n > 0 { … grow by n blocks … }
//	… the answer ended without an error
//	estimator.Observe(pool, &prompt, ticket.PromptTokens, usage)
//
// # What is learned
//
// Six coefficients a model: tokens of a byte of ASCII, of a byte of other text,
// of a byte of tool descriptions, of a message's frame, of the template around a
// prompt, and of a part that is no text. A report moves each by its share in the
// estimate, on a logarithmic scale: reports that are off by the same factor each reduce
// the error by a constant factor. Engines are not trusted: a report counts only up to a
// few times the model's usual deviation, coefficients are bounded, and implausible
// reports are ignored.
//
// # Locks
//
// Estimates take none. Observe takes the model's, and the table's for a model
// that is new; neither calls out.
package tokens
