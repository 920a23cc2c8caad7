// Package generate has requests to engines that take token ids and give token ids: what a
// request of the API asks of such an engine ([Request]), what the engine tells while it
// generates ([Event]), and the API's answer that becomes of it.
//
// It knows nothing of how an engine is spoken to.
package generate
