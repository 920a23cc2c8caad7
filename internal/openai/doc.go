// Package openai reads and edits the bytes of requests and answers of the OpenAI-style
// API. It does not know what they are used for.
//
// Goal: extract the few things routing needs from a request body without decoding
// it, change a few fields without copying it, write errors in the API's form, and
// follow an event stream that is relayed.
//
// Non-goals: choosing workers, waiting, sockets, engine dialects. Nothing here
// starts a goroutine or reads a clock.
//
// A request's life here:
//
//	p, err := openai.Peek(openai.RouteChatCompletions, body, openai.PeekOptions{Refuse: openai.ControlledFields})
//	if err != nil { ... }               // always an *openai.Error, ready to be written
//	defer p.Release()
//	p.Model, p.Stream, p.Samples()      // what routing needs
//
//	var s openai.Splicer                // one per leg
//	s.Reset(p)
//	s.SetString(openai.FieldBootstrapHost, host)
//	s.SetInt(openai.FieldBootstrapPort, 8998)
//	s.SetInt(openai.FieldBootstrapRoom, room)
//	segments, size := s.Segments()      // the client's bytes with ours between them
//
// The answer's side: EventScanner watches a stream that is relayed byte for byte
// and can report whether it ended well; ReadUsage finds the token counts; a
// LogprobMerger joins the two halves of a native answer. ReadErrorObject reports whether
// an answer with status 200 is an error after all.
//
// A request for n samples, where an engine's pairs can give one each:
//
//	f, err := openai.PlanFan(p, 0)      // an *openai.Error: what copies can't give
//	for k := range f.Copies {           // each a pair of legs with rooms of its own
//		s.Reset(p)
//		f.Edit(&s, k)                   // n, seed, best_of; then the caller's own fields
//	}
//	segments, size, err := f.Merge(answers)    // whole answers, in the copies' order
//
//	m := f.Stream(0)                    // or streams, under one lock of the caller's
//	err = m.Feed(k, piece, write)       // a *FanError ends the whole
//	err = m.End(k)                      // at the end of copy k's stream
//	m.Done()                            // the client's end marker came out
//
// Merge and Feed put an engine's own error object into the FanError (FromEngine), with
// its status, so that the client gets it and only that copy's worker is charged.
//
// The JSON scanner (scan.go) is our own: it checks the whole of a body strictly
// (RFC 8259) in one pass, without recursion and without decoding, and counts
// text and token ids on the way. The fuzz tests compare it with encoding/json and
// jsontext. It accepts only what engines' parsers read in the same way: with a key that
// the two read differently, a client could get around the admission gate.
package openai
