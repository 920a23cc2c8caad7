package sim

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// The kinds of Violation.
const (
	// RoomReused: a worker got a room for the second time.
	RoomReused = "room-reused"
	// RoomMissing: a prefill or decode leg came without a room.
	RoomMissing = "room-missing"
	// RoomReserved: room 0, which engines use for their own warm-up.
	RoomReserved = "room-reserved"
	// RoomShared: n>1 samples of a request shared one room.
	RoomShared = "room-shared"
	// UnknownPrefill: bootstrap_host and bootstrap_port name no prefill worker.
	UnknownPrefill = "unknown-prefill"
	// RankMismatch: the room, routed_dp_rank and disagg_prefill_dp_rank of a
	// pair do not name the same prefill rank.
	RankMismatch = "rank-mismatch"
	// PromptMismatch: the legs of a pair carry prompts of different length.
	PromptMismatch = "prompt-mismatch"
	// NoMeeting: a leg waited for the other until its timeout.
	NoMeeting = "no-meeting"
)

// Violation is an error of the router that the simulator detected.
type Violation struct {
	Time   time.Time `json:"time"`
	Worker string    `json:"worker"`
	Kind   string    `json:"kind"`
	Room   int64     `json:"room"`
	// Request is a vLLM worker's id of the request, "" for SGLang's.
	Request string `json:"request,omitempty"`
	Detail  string `json:"detail"`
}

func (v Violation) String() string {
	if v.Request != "" {
		return fmt.Sprintf("%s: %s (request %s): %s", v.Worker, v.Kind, v.Request, v.Detail)
	}
	return fmt.Sprintf("%s: %s (room %d): %s", v.Worker, v.Kind, v.Room, v.Detail)
}

// usedRooms bounds how many rooms are remembered to detect reuse; a reuse after that
// many other requests is not detected.
const usedRooms = 1 << 18

// maxViolations bounds how many violations are kept; all are counted.
const maxViolations = 1000

type roomKey struct {
	worker *Worker
	room   int64
}

// broker pairs the two legs of a request by their bootstrap room: all workers of a
// fleet share it in place of the KV transfer network.
type broker struct {
	mu         sync.Mutex
	meetings   map[int64][]*meeting // open ones, by room
	used       [2]map[roomKey]struct{}
	prefills   map[string]int // "host:port" -> how many prefill workers claim it
	closing    bool           // the whole fleet ends: a missing peer is no violation any more
	violations []Violation
	violated   int64
}

// meeting is the pairing of one room. Either leg may come first.
type meeting struct {
	room int64

	// Guarded by broker.mu.
	prefill, decode     *Worker
	host                string // wanted by decode, or the prefill's own
	port                int
	anyPort             bool
	prefillRank         int // of prefill, or wanted by decode (-1: follows the room)
	prompt              int
	cached              int // prompt tokens that prefill did not compute; set before done
	failed, transferred bool
	lost                bool
	err                 error

	cancels []context.CancelCauseFunc // of the legs that are here

	met      chan struct{} // closed when both sides are here
	done     chan struct{} // closed when the KV is transferred
	vanished chan struct{} // closed when a side's process died
}

func newBroker() *broker {
	return &broker{
		meetings: make(map[int64][]*meeting),
		used:     [2]map[roomKey]struct{}{make(map[roomKey]struct{}), nil},
		prefills: make(map[string]int),
	}
}

func newMeeting(room int64, host string, port, prompt int) *meeting {
	return &meeting{room: room, host: host, port: port, prompt: prompt,
		met: make(chan struct{}), done: make(chan struct{}), vanished: make(chan struct{})}
}

// canonicalHost returns one spelling for all spellings of an address. An IPv6 address
// without brackets is no valid bootstrap_host and is left as it is.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	if host == "localhost" {
		return "127.0.0.1"
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		if ip := net.ParseIP(host[1 : len(host)-1]); ip != nil {
			return "[" + ip.String() + "]"
		}
	}
	return host
}

func hostPort(host string, port int) string { return fmt.Sprintf("%s:%d", host, port) }

// claim registers a prefill worker at host:port; unclaim removes it.
func (b *broker) claim(host string, port int) {
	b.mu.Lock()
	b.prefills[hostPort(host, port)]++
	b.mu.Unlock()
}

func (b *broker) unclaim(host string, port int) {
	b.mu.Lock()
	if k := hostPort(host, port); b.prefills[k] > 1 {
		b.prefills[k]--
	} else {
		delete(b.prefills, k)
	}
	b.mu.Unlock()
}

// useLocked records that w got the room and reports whether it had got it before.
func (b *broker) useLocked(w *Worker, room int64) bool {
	k := roomKey{w, room}
	for _, m := range b.used {
		if _, ok := m[k]; ok {
			return true
		}
	}
	if len(b.used[0]) >= usedRooms/2 {
		b.used[0], b.used[1] = make(map[roomKey]struct{}), b.used[0]
	}
	b.used[0][k] = struct{}{}
	return false
}

func (b *broker) violateLocked(w *Worker, kind string, room int64, format string, args ...any) {
	b.violated++
	if len(b.violations) < maxViolations {
		b.violations = append(b.violations, Violation{Time: time.Now(), Worker: w.id, Kind: kind, Room: room, Detail: fmt.Sprintf(format, args...)})
	}
}

func (b *broker) violate(w *Worker, kind string, room int64, format string, args ...any) {
	b.mu.Lock()
	b.violateLocked(w, kind, room, format, args...)
	b.mu.Unlock()
}

// violateID is violate for requests that have an id and no room.
func (b *broker) violateID(w *Worker, kind, id string, format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.violated++
	if len(b.violations) < maxViolations {
		b.violations = append(b.violations, Violation{Time: time.Now(), Worker: w.id, Kind: kind, Request: id, Detail: fmt.Sprintf(format, args...)})
	}
}

// offerPrefill adds a prefill leg to the meeting of its room. If the meeting fails,
// it calls cancel.
func (b *broker) offerPrefill(w *Worker, s *sequence, cancel context.CancelCauseFunc) (*meeting, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.enterLocked(w, s.room); err != nil {
		return nil, err
	}
	host, port := w.bootstrapHost(), w.BootstrapPort()
	for _, m := range b.meetings[s.room] {
		if m.prefill != nil || m.failed || m.host != host || (m.port != port && !m.anyPort) {
			continue
		}
		m.prefill, m.cancels = w, append(m.cancels, cancel)
		return m, b.joinLocked(m, w, m.prefillRank, s.rank, m.prompt, s.prompt)
	}
	m := newMeeting(s.room, host, port, s.prompt)
	m.prefill, m.prefillRank = w, s.rank
	m.cancels = append(m.cancels, cancel)
	b.meetings[s.room] = append(b.meetings[s.room], m)
	return m, nil
}

// close marks that the workers are about to end, in any order: from then on a decode
// leg whose prefill has ended is no violation.
func (b *broker) close() {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
}

// offerDecode adds a decode leg, which holds its memory, to the meeting of its room.
func (b *broker) offerDecode(w *Worker, s *sequence, cancel context.CancelCauseFunc) (*meeting, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.enterLocked(w, s.room); err != nil {
		return nil, err
	}
	host, port, anyPort := canonicalHost(s.host), s.port, false
	if !s.hasPort {
		port, anyPort = w.opt.DefaultBootstrapPort, w.opt.NullPortMeets
	}
	if b.prefills[hostPort(host, port)] == 0 && !anyPort && !b.closing {
		b.violateLocked(w, UnknownPrefill, s.room, "no prefill worker at bootstrap_host %q, bootstrap_port %d", s.host, port)
	}
	for _, m := range b.meetings[s.room] {
		if m.decode != nil || m.failed || m.host != host || (m.port != port && !anyPort) {
			continue
		}
		m.decode, m.cancels = w, append(m.cancels, cancel)
		return m, b.joinLocked(m, w, s.prefillRank, m.prefillRank, s.prompt, m.prompt)
	}
	m := newMeeting(s.room, host, port, s.prompt)
	m.decode, m.anyPort, m.prefillRank = w, anyPort, s.prefillRank
	m.cancels = append(m.cancels, cancel)
	b.meetings[s.room] = append(b.meetings[s.room], m)
	return m, nil
}

func (b *broker) enterLocked(w *Worker, room int64) error {
	if room == 0 {
		b.violateLocked(w, RoomReserved, room, "room 0 is reserved by the engine")
	}
	if b.useLocked(w, room) {
		b.violateLocked(w, RoomReused, room, "this worker was sent the room before")
		return abortf(500, "bootstrap room %d was used before", room)
	}
	return nil
}

// joinLocked completes a meeting whose second side has just come. wanted is
// the prefill rank that decode expects (-1: the one that the room implies), have is
// the rank that holds the KV.
func (b *broker) joinLocked(m *meeting, w *Worker, wanted, have, decodePrompt, prefillPrompt int) error {
	if wanted < 0 {
		wanted = int(m.room % int64(m.prefill.opt.DPSize))
	}
	if decodePrompt != prefillPrompt {
		b.violateLocked(w, PromptMismatch, m.room, "prefill has %d prompt tokens, decode %d", prefillPrompt, decodePrompt)
	}
	if wanted != have {
		b.violateLocked(w, RankMismatch, m.room, "decode expects the room at prefill rank %d, it is at rank %d", wanted, have)
		b.failLocked(m, abortf(500, "KV transfer failed: prefill rank %d has no room %d", wanted, m.room))
		return m.err
	}
	close(m.met)
	return nil
}

// transferred tells both sides that decode now holds the KV. It returns false if the
// meeting has failed before.
func (b *broker) transferred(m *meeting, cached int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.failed || m.lost {
		return false
	}
	m.transferred, m.cached = true, cached
	b.forgetLocked(m)
	close(m.done)
	return true
}

// fail ends a meeting for both sides unless the KV is transferred already.
func (b *broker) fail(m *meeting, err error) {
	b.mu.Lock()
	b.failLocked(m, err)
	b.mu.Unlock()
}

// lose ends a meeting one side of which was killed.
func (b *broker) lose(m *meeting) {
	b.mu.Lock()
	if !m.failed && !m.transferred && !m.lost {
		m.lost = true
		close(m.vanished)
		b.forgetLocked(m)
	}
	b.mu.Unlock()
}

func (b *broker) failLocked(m *meeting, err error) {
	if m.failed || m.transferred {
		return
	}
	m.failed, m.err = true, err
	b.forgetLocked(m)
	for _, cancel := range m.cancels {
		cancel(err)
	}
}

func (b *broker) forgetLocked(m *meeting) {
	list := b.meetings[m.room]
	for i, x := range list {
		if x == m {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(b.meetings, m.room)
	} else {
		b.meetings[m.room] = list
	}
}

func (b *broker) open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.meetings)
}
