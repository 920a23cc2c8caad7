package fleet

import (
	"fmt"
	"slices"
)

// The workers of one model are of one kind: all are reached by HTTP or all by gRPC, since
// what a request is made into, and counted by, is not the same; and those that take token
// ids have the same tokenizer, since the two legs of a request share its tokens, and a retry
// on another worker too. Where they differ, one worker's kind is the model's, and those of
// another kind get no requests.

// kindsLocked finds for each model the worker whose kind is the model's: one that gets
// requests already before one that does not, one that answers before one that does not, and
// then the first that was registered. Nil if all workers are reached by HTTP.
func (f *Fleet) kindsLocked() map[string]*Worker {
	if !f.hasTokens {
		return nil
	}
	kinds := map[string]*Worker{}
	best := map[string]int{}
	for _, w := range f.workers {
		if w.draining || w.roleProblem() != "" {
			continue
		}
		score := w.kindScoreLocked()
		for _, name := range w.ownNames() {
			if kinds[name] == nil || score > best[name] {
				kinds[name], best[name] = w, score
			}
		}
	}
	return kinds
}

func (w *Worker) kindScoreLocked() (score int) {
	answers := w.health.everHealthy && !w.health.dead
	if answers {
		score += 2
	}
	if w.text.digest() != "" {
		score++
	}
	if answers && w.inGate && w.modelProblem == "" {
		score += 4
	}
	return score
}

// kindProblemLocked says why w gets no requests because of its kind; empty if it does.
func (f *Fleet) kindProblemLocked(w *Worker) string {
	if f.kinds == nil {
		return ""
	}
	for _, name := range w.ownNames() {
		o := f.kinds[name]
		if o == nil || o == w {
			continue
		}
		switch {
		case o.base.GRPC() != w.base.GRPC():
			how := map[bool]string{true: "gRPC", false: "HTTP"}
			return fmt.Sprintf("it is reached by %s, and %s, which serves the model %q too, by %s: it gets no requests; the workers of a model are of one kind",
				how[w.base.GRPC()], o.url, name, how[o.base.GRPC()])
		case o.text.digest() != "" && w.text.digest() != "" && o.text.digest() != w.text.digest():
			return fmt.Sprintf("its tokenizer's files are not those of %s, which serves the model %q too: it gets no requests; give both engines the same files, or set tokenizer_path", o.url, name)
		}
	}
	return ""
}

// noteKindsLocked tells whether some worker is reached by gRPC or takes token ids.
func (f *Fleet) noteKindsLocked() {
	f.hasTokens = slices.ContainsFunc(f.workers, func(w *Worker) bool { return w.base.GRPC() || w.takesTokens() })
}
