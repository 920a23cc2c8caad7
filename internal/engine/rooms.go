package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
)

const (
	// minRoom keeps clear of the rooms an engine uses itself: 0 and the first
	// few are its warm-up and health requests.
	minRoom = 1 << 20
	// maxRoom is the largest number that engines keep in a signed 64-bit field.
	maxRoom = 1<<63 - 1

	roomShards = 16
)

// Rooms mints bootstrap rooms. A room is never in use twice at once in this
// process; against other routers on the same fleet 63 random bits must do.
type Rooms struct {
	shards [roomShards]roomShard
}

type roomShard struct {
	mu   sync.Mutex
	rand *mathrand.ChaCha8  // guarded by mu
	live map[int64]struct{} // guarded by mu
	_    [24]byte           // keep neighbours off one cache line
}

// NewRooms seeds the generators from the system.
func NewRooms() *Rooms {
	r := &Rooms{}
	for i := range r.shards {
		var seed [32]byte
		_, _ = rand.Read(seed[:]) // never fails since Go 1.24
		r.shards[i].rand = mathrand.NewChaCha8(seed)
		r.shards[i].live = map[int64]struct{}{}
	}
	return r
}

// Mint returns a room that is not in use, congruent to rank modulo dpSize: an
// engine with several data-parallel ranks derives the prefill rank from the
// room. dpSize below 2 leaves the room free. The room is in use until Free.
func (r *Rooms) Mint(rank, dpSize int) int64 {
	if dpSize > 1 && (rank < 0 || rank >= dpSize) {
		panic(fmt.Sprintf("BUG: data-parallel rank %d of %d", rank, dpSize))
	}
	s := &r.shards[mathrand.Uint32()%roomShards]
	for {
		s.mu.Lock()
		room := int64(s.rand.Uint64() >> 1)
		s.mu.Unlock()
		if dpSize > 1 {
			room -= (room - int64(rank)) % int64(dpSize)
		}
		if room < minRoom || room > maxRoom-int64(dpSize) {
			continue
		}
		if r.claim(room) {
			return room
		}
	}
}

func (r *Rooms) shardOf(room int64) *roomShard {
	// The low bits carry the rank; take others.
	return &r.shards[uint64(room)>>40%roomShards]
}

func (r *Rooms) claim(room int64) bool {
	s := r.shardOf(room)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.live[room]; taken {
		return false
	}
	s.live[room] = struct{}{}
	return true
}

// Free gives a room back.
func (r *Rooms) Free(room int64) {
	s := r.shardOf(room)
	s.mu.Lock()
	delete(s.live, room)
	s.mu.Unlock()
}

// Live returns the number of rooms in use.
func (r *Rooms) Live() int {
	n := 0
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n += len(s.live)
		s.mu.Unlock()
	}
	return n
}

// seed is for tests that need the same rooms each time.
func (r *Rooms) seed(v uint64) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], v)
	for i := range r.shards {
		r.shards[i].rand = mathrand.NewChaCha8(seed)
	}
}
