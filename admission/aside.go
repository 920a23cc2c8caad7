package admission

// Aside is what is set aside on a rank; see [SetAside]. What its role does not hold is
// ignored.
type Aside struct {
	// Slots are requests in prefill, of a prefill rank.
	Slots int `json:",omitempty"`
	// Calls are those in prefill, of a prefill rank, else those that decode.
	Calls int `json:",omitempty"`
	// Tokens are uncached prompt tokens in prefill.
	Tokens int64 `json:",omitempty"`
	// Blocks are KV blocks, but of a prefill rank.
	Blocks int64 `json:",omitempty"`
}

// maxAsideCalls bounds what is set aside of calls, so that no sum overflows.
const maxAsideCalls = 1 << 30

func (a Aside) clean(role Role) Aside {
	a.Slots, a.Calls = min(max(a.Slots, 0), maxAsideCalls), min(max(a.Calls, 0), maxAsideCalls)
	a.Tokens, a.Blocks = min(max(a.Tokens, 0), maxAmount), min(max(a.Blocks, 0), maxAmount)
	if role == RolePrefill {
		a.Blocks = 0
	} else {
		a.Slots = 0
	}
	return a
}

// addAside makes a, which is clean, what is set aside on r.
func (r *Rank) addAside(a Aside) {
	was := r.aside
	r.aside = a
	r.slots += a.Slots - was.Slots
	r.tokens += a.Tokens - was.Tokens
	if r.role == RolePrefill {
		r.prefill += a.Calls - was.Calls
	} else {
		r.active += a.Calls - was.Calls
		r.blocksActive += a.Blocks - was.Blocks
	}
	r.check()
}

// setAside replaces what is set aside on a registered rank.
func setAside(ix *rankIndex, r *Rank, a Aside) {
	a = a.clean(r.role)
	if !r.present || a == r.aside {
		return
	}
	r.addAside(a)
	ix.refresh(r, 0)
}
