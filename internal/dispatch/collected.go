package dispatch

// freeAnswer is how much of an answer may be collected without being counted, in bytes.
const freeAnswer = 16 << 10

// collected counts the memory of one answer as it is collected. The memory is given back
// at the end of the request, as the answer may be needed until then.
type collected struct {
	x *request
	n int // counted
}

// hold tells whether there is room for an answer of n bytes.
func (c *collected) hold(n int) bool {
	if n <= freeAnswer || n <= c.n || c.x.call.Memory == nil {
		return true
	}
	// append allocates a quarter more.
	more := n + n/4 - c.n
	if !c.x.call.Memory.ReserveMemory(more) {
		return false
	}
	c.n += more
	c.x.answers.Add(int64(more))
	return true
}
