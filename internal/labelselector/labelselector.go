// Package labelselector reads the label selectors of Kubernetes: what kubectl takes with
// -l, and the lists of pairs that the SGLang model gateway takes.
//
// It is a package of its own so that the configuration can check a selector without
// knowing the client of Kubernetes. It matches labels and says which of several selectors'
// requirements an API server can check; it asks no API server itself.
package labelselector

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selector says which objects are meant, by their labels. The zero value matches none.
type Selector struct {
	selector labels.Selector
}

// Parse reads "app=x,tier in (a, b),!canary", or pairs with a space between:
// "app=x tier=a". A selector without a requirement is refused: it would match everything.
func Parse(text string) (Selector, error) {
	s, err := labels.Parse(joinPairs(text))
	if err != nil {
		return Selector{}, err
	}
	if s.Empty() {
		return Selector{}, fmt.Errorf("it has no requirement, so that it would match every object")
	}
	return Selector{s}, nil
}

// joinPairs puts commas between pairs that have spaces between them, and leaves every
// other text as it is.
func joinPairs(text string) string {
	words := strings.Fields(text)
	for _, w := range words {
		at := strings.IndexByte(w, '=')
		if at <= 0 || strings.HasSuffix(w, "!=") || strings.HasSuffix(w, "==") || strings.ContainsAny(w, ",()") {
			return text
		}
	}
	return strings.Join(words, ",")
}

// IsZero reports whether s is the zero value.
func (s Selector) IsZero() bool { return s.selector == nil }

// Matches reports whether an object with the labels is meant.
func (s Selector) Matches(have map[string]string) bool {
	return s.selector != nil && s.selector.Matches(labels.Set(have))
}

// String is the selector as an API server takes it.
func (s Selector) String() string {
	if s.selector == nil {
		return ""
	}
	return s.selector.String()
}

// Union returns a selector for an API server that every object matches which one of the
// selectors matches. It may match others too: a selector is a conjunction, so that only
// what all of them require of one label can be told. It is "" where that is nothing.
func Union(selectors ...Selector) string {
	byLabel := make([]map[string][]labels.Requirement, len(selectors))
	for i, s := range selectors {
		if s.selector == nil {
			return ""
		}
		byLabel[i] = map[string][]labels.Requirement{}
		all, _ := s.selector.Requirements()
		for _, r := range all {
			byLabel[i][r.Key()] = append(byLabel[i][r.Key()], r)
		}
	}
	switch len(selectors) {
	case 0:
		return ""
	case 1:
		return selectors[0].String()
	}
	union := labels.NewSelector()
	for key := range byLabel[0] {
		of := make([][]labels.Requirement, len(selectors))
		for i := range selectors {
			of[i] = byLabel[i][key]
		}
		union = union.Add(joint(key, of)...)
	}
	return union.String()
}

// joint returns what all selectors together require of a label, given what each of them
// requires of it.
func joint(key string, of [][]labels.Requirement) []labels.Requirement {
	if equal := inAll(of); len(equal) > 0 {
		return equal
	}
	var values []string
	known := true
	for _, reqs := range of {
		one, exists := valuesOf(reqs)
		if !exists {
			return nil
		}
		known = known && one != nil
		values = append(values, one...)
	}
	if !known {
		return requirement(key, selection.Exists, nil)
	}
	slices.Sort(values)
	return requirement(key, selection.In, slices.Compact(values))
}

// inAll returns the requirements that stand in every list.
func inAll(of [][]labels.Requirement) []labels.Requirement {
	var equal []labels.Requirement
	for _, r := range of[0] {
		everywhere := true
		for _, other := range of[1:] {
			everywhere = everywhere && slices.ContainsFunc(other, func(o labels.Requirement) bool { return o.String() == r.String() })
		}
		if everywhere {
			equal = append(equal, r)
		}
	}
	return equal
}

// valuesOf returns the values that requirements of one label leave, nil for any. exists
// is whether they require the label at all.
func valuesOf(reqs []labels.Requirement) (values []string, exists bool) {
	for _, r := range reqs {
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			if values == nil {
				values = r.ValuesUnsorted()
			}
			exists = true
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			exists = true
		}
	}
	return values, exists
}

func requirement(key string, op selection.Operator, values []string) []labels.Requirement {
	r, err := labels.NewRequirement(key, op, values)
	if err != nil {
		return nil // less is required, which is always right
	}
	return []labels.Requirement{*r}
}
