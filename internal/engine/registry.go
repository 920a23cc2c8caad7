package engine

import "slices"

// Registry has dialects by their names: package dialects has that of all. It is immutable.
type Registry struct{ dialects []Dialect }

// NewRegistry makes a registry. Of the dialects that speak a scheme, the first is that of
// workers of which nothing is known.
func NewRegistry(dialects ...Dialect) *Registry { return &Registry{dialects} }

// Named returns the dialect of a name.
func (r *Registry) Named(name string) (d Dialect, ok bool) {
	i := slices.IndexFunc(r.dialects, func(d Dialect) bool { return d.Name() == name })
	if i < 0 {
		return nil, false
	}
	return r.dialects[i], true
}

// Speaking has the dialects of workers at URLs of a scheme; those of HTTP if nobody speaks it.
func (r *Registry) Speaking(scheme string) *Registry {
	var some []Dialect
	for _, d := range r.dialects {
		if d.Speaks(scheme) {
			some = append(some, d)
		}
	}
	switch {
	case len(some) == len(r.dialects):
		return r
	case len(some) == 0 && scheme != "http":
		return r.Speaking("http")
	case len(some) == 0:
		return r
	}
	return &Registry{some}
}

// Some tells whether there is such a dialect.
func (r *Registry) Some(is func(Dialect) bool) bool { return slices.ContainsFunc(r.dialects, is) }

// Default returns the dialect of workers of which nothing is known.
func (r *Registry) Default() Dialect { return r.dialects[0] }

// Names returns the names of all dialects.
func (r *Registry) Names() []string {
	names := make([]string, len(r.dialects))
	for i, d := range r.dialects {
		names[i] = d.Name()
	}
	return names
}
