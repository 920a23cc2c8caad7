package kv

import (
	"sync"
	"sync/atomic"
)

// seats gives ranks the numbers that the table knows them by: 1 to 65,535. A number is given
// again only when nothing in the table has it.
type seats struct {
	chunks [maxRanks / seatChunk]atomic.Pointer[[seatChunk]seat] // read without a lock

	mu   sync.Mutex
	next int
	free []uint16
}

type seat struct {
	rank atomic.Pointer[Rank] // nil: what is there in the table is of a rank that is gone
}

const seatChunk = 1024

// take gives a rank a number; 0 if there is none.
func (s *seats) take(r *Rank) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var id uint16
	if n := len(s.free); n > 0 {
		id = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		if s.next+1 == maxRanks {
			return 0
		}
		s.next++
		id = uint16(s.next)
		if c := &s.chunks[s.next/seatChunk]; c.Load() == nil {
			c.Store(new([seatChunk]seat))
		}
	}
	s.chunks[id/seatChunk].Load()[id%seatChunk].rank.Store(r)
	return id
}

// vacate makes a number mean nobody.
func (s *seats) vacate(id uint16) {
	if id != 0 {
		s.chunks[id/seatChunk].Load()[id%seatChunk].rank.Store(nil)
	}
}

// release makes a number free for others. Nothing in the table has it.
func (s *seats) release(id uint16) {
	if id == 0 {
		return
	}
	s.vacate(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, id)
}

// rank returns who has a number; nil if nobody.
func (s *seats) rank(id uint16) *Rank {
	c := s.chunks[id/seatChunk].Load()
	if c == nil {
		return nil
	}
	return c[id%seatChunk].rank.Load()
}
