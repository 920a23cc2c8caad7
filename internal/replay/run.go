package replay

import (
	"fmt"
	"iter"
)

// Run replays a trace, one arm after the other, all of them for no names. The results come
// as the arms end.
func Run(t *Trace, o Options, names []string) (iter.Seq2[*Result, error], error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	found, err := findArms(names)
	if err != nil {
		return nil, err
	}
	at, order := t.arrivals(o.Speed, o.Random)
	ideal := t.ideal(order)
	return func(yield func(*Result, error) bool) {
		for _, a := range found {
			s, err := newSim(t, &o, a)
			if err != nil {
				yield(nil, fmt.Errorf("arm %s: %w", a.name, err))
				return
			}
			s.run(at, order)
			if !yield(s.result(ideal), nil) {
				return
			}
		}
	}, nil
}
