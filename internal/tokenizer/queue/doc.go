// Package queue decides which texts are tokenized now, and which wait. Tokenizing takes
// nothing but CPU time, 0.1 s and more for a megabyte, so a burst of long prompts must not
// have all cores while tokens of running answers are to be passed on.
//
//	q := queue.New(0, 256<<20) // all cores but one, 256 MiB of text
//	err := q.Do(ctx, client, len(text), func(ctx context.Context) error {
//		ids, err = tok.Encode(ctx, ids, text, true)
//		return err
//	})
//
// # Who is next
//
// Work is run by the goroutine that calls Do, at most Workers at one time. What waits is
// ordered twice:
//
//   - Among keys (a client, or a model) by the work that each has been given: a key with
//     long texts gets as many bytes as one with short texts, not as many turns (weighted fair
//     queueing, all weights 1). Of texts of the same length each key gets one in turn. A key
//     that comes anew waits for what runs, and not for what others have put into the queue
//     before it.
//   - Within a key, short before long: a text stands behind all that come within a second of it
//     for each megabyte that it is longer than they are. So a long one waits, but not for
//     ever.
//
// Nothing that runs is interrupted, so the wait of a key that comes anew is that for the
// first of the running texts to end.
//
// # Memory
//
// Bytes of texts that wait or run are counted, with 512 for each call. What the work takes
// beside its text is counted apart, as the most that it can be, 60 bytes for each byte of text,
// within a bound of the same size: a text for which there is no memory waits, and with it all
// behind it, until others end. There is a bound on
// them together, and a key may hold four times what is free: 80 % of the bound when it is
// alone, and less, the less there is left for others.
//
// # Locks
//
// One, held for the time of a step and never while work runs.
package queue
