package admission

import "testing"

// Ranks that are liked for different labels of the same weight are liked alike: only
// those with the label named first were kept, so that the more loaded of two could
// be chosen.
func TestEqualWeightsAreLikedAlike(t *testing.T) {
	p := newPreferences([]Preference{{Label{"zone", "a"}, 1}, {Label{"gpu", "b"}, 1}})
	all := bitmap{}.grow(1)
	p.grow(1)
	for i, labels := range []map[string]string{{"zone": "a"}, {"gpu": "b"}, nil} {
		p.put(&Rank{index: i, labels: labels}, true)
		all.put(i, true)
	}
	s, ok := p.best(all, nil)
	if !ok || s.weight != 1 {
		t.Fatalf("the best weigh %d, want 1", s.weight)
	}
	kept := bitmap{}.grow(1)
	p.keep(kept, all, nil, s.weight)
	if kept[0] != 0b011 {
		t.Errorf("kept %b, want both that have one of the labels", kept[0])
	}
}
