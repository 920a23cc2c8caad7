package replay

import "github.com/sluice-router/sluice/internal/kv"

// cache is the KV cache of an engine: so many blocks, of which the least recently used goes
// first. Of one prompt the last block goes first, as it does in engines.
type cache struct {
	limit int
	at    map[kv.Key]int32
	nodes []cacheNode // 0 is the ring's end: next is the newest, prev the oldest
	free  []int32
}

type cacheNode struct {
	key        kv.Key
	next, prev int32
}

func newCache(limit int) *cache {
	return &cache{limit: limit, at: map[kv.Key]int32{}, nodes: make([]cacheNode, 1)}
}

// match is how many of the first blocks of a prompt it holds.
func (c *cache) match(blocks []kv.Key) int {
	for n, k := range blocks {
		if _, ok := c.at[k]; !ok {
			return n
		}
	}
	return len(blocks)
}

// store makes it hold a prompt, all of whose blocks are used now. It appends the blocks that
// went to evicted.
func (c *cache) store(blocks []kv.Key, evicted []kv.Key) []kv.Key {
	for i := len(blocks) - 1; i >= 0; i-- {
		k := blocks[i]
		n, ok := c.at[k]
		if ok {
			c.unlink(n)
		} else {
			n = c.node(k)
			c.at[k] = n
		}
		c.link(n)
	}
	return c.shrink(c.limit, evicted)
}

// shrink lets the oldest go until there are at most limit.
func (c *cache) shrink(limit int, evicted []kv.Key) []kv.Key {
	for len(c.at) > max(limit, 0) {
		n := c.nodes[0].prev
		k := c.nodes[n].key
		c.unlink(n)
		c.free = append(c.free, n)
		delete(c.at, k)
		evicted = append(evicted, k)
	}
	return evicted
}

func (c *cache) node(k kv.Key) int32 {
	if last := len(c.free) - 1; last >= 0 {
		n := c.free[last]
		c.free = c.free[:last]
		c.nodes[n].key = k
		return n
	}
	c.nodes = append(c.nodes, cacheNode{key: k})
	return int32(len(c.nodes) - 1)
}

func (c *cache) link(n int32) {
	first := c.nodes[0].next
	c.nodes[n].next, c.nodes[n].prev = first, 0
	c.nodes[first].prev = n
	c.nodes[0].next = n
}

func (c *cache) unlink(n int32) {
	next, prev := c.nodes[n].next, c.nodes[n].prev
	c.nodes[prev].next, c.nodes[next].prev = next, prev
}
