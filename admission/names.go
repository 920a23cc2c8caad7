package admission

import "slices"

// rankNames are the registered ranks by what a pin may say: id and worker.
type rankNames map[string][]*Rank

func (x rankNames) add(r *Rank) {
	x[r.id] = append(x[r.id], r)
	if r.worker != "" && r.worker != r.id {
		x[r.worker] = append(x[r.worker], r)
	}
}

func (x rankNames) remove(r *Rank) {
	for _, name := range [...]string{r.id, r.worker} {
		left := slices.DeleteFunc(x[name], func(o *Rank) bool { return o == r })
		if len(left) == 0 {
			delete(x, name)
		} else {
			x[name] = left
		}
	}
}

// ofWorker returns the ranks of the worker of r, where r is registered and one of several.
func (x rankNames) ofWorker(r *Rank) []*Rank {
	if r.index < 0 || r.worker == "" || r.worker == r.id {
		return nil
	}
	return x[r.worker]
}
