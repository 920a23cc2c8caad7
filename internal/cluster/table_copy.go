package cluster

import (
	"maps"
	"slices"
)

// tableCopy is a member's copy of the keeper's table: by it grants name ranks, the fleet is
// shown as the whole sees it, and the member begins when it becomes the keeper.
type tableCopy struct {
	version uint64
	rows    []*Row // by number; nil: none. Spec is never nil.
	byID    map[string]*Row
	pairs   []PairObservation
}

// apply takes what the keeper told. Rows that name no rank are left out.
func (c *tableCopy) apply(rows *Rows) {
	if rows.Full || c.byID == nil {
		c.rows, c.byID, c.pairs = nil, map[string]*Row{}, nil
	}
	c.version = rows.Version
	if rows.HasPairs {
		c.pairs = rows.Pairs
	}
	for i := range rows.Rows {
		told := &rows.Rows[i]
		n := int(told.At.Number)
		if n == 0 || n > maxTableRanks {
			continue
		}
		old := c.row(told.At.Number)
		switch {
		case told.Gone:
			// It may have had another generation, too, of which nobody told in between.
			if old != nil && old.At.Generation <= told.At.Generation {
				c.drop(old)
			}
			continue
		case told.Spec == nil:
			if old != nil && old.At == told.At {
				old.Load = told.Load
			}
			continue
		}
		if old != nil {
			c.drop(old)
		}
		if same := c.byID[told.Spec.ID]; same != nil {
			c.drop(same)
		}
		for len(c.rows) <= n {
			c.rows = append(c.rows, nil)
		}
		kept := *told
		c.rows[n], c.byID[kept.Spec.ID] = &kept, &kept
	}
}

func (c *tableCopy) row(number uint32) *Row {
	if int(number) < len(c.rows) {
		return c.rows[number]
	}
	return nil
}

func (c *tableCopy) drop(r *Row) {
	c.rows[r.At.Number] = nil
	delete(c.byID, r.Spec.ID)
}

// id is the rank that at names; "": there is none.
func (c *tableCopy) id(at RankAt) string {
	if r := c.row(at.Number); r != nil && r.At == at {
		return r.Spec.ID
	}
	return ""
}

// at is the rank of an id; the zero value: there is none.
func (c *tableCopy) at(id string) RankAt {
	if r := c.byID[id]; r != nil {
		return r.At
	}
	return RankAt{}
}

// find is what the keeper told of a rank; nil: nothing.
func (c *tableCopy) find(id string) *Row { return c.byID[id] }

// whole is the copy as it is told to the next keeper.
func (c *tableCopy) whole() *Rows {
	all := &Rows{Version: c.version, Full: true, HasPairs: true, Pairs: c.pairs}
	for _, id := range slices.Sorted(maps.Keys(c.byID)) {
		all.Rows = append(all.Rows, *c.byID[id])
	}
	return all
}
