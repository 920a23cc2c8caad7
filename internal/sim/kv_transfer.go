package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// transferLeg is a sequence's part in the hand-off of KV.
type transferLeg struct {
	w  *Worker
	l  *lifetime
	s  *sequence
	at *engineRef // the rank it runs on

	h         *handoff
	claimed   bool          // decode: has claimed h, and must free it
	from      *engineRef    // decode: the engine that has the KV
	awaits    bool          // decode: the prefill is still to come
	wrongKV   bool          // decode: the KV is that of another prompt
	fatal     bool          // decode: the engine crashes
	hangs     bool          // decode: waits until the client disconnects
	peerLost  bool          // decode: the prefill's engine died while it was awaited
	failure   string        // decode: fails with this text
	failAfter time.Duration // and after this time
	offers    bool          // prefill: leaves its KV for a decode
}

func (t *transferLeg) violate(kind, format string, args ...any) {
	t.w.fleet.broker.violateID(t.w, kind, t.s.v.id, format, args...)
}

// countAlone counts a request whose KV hand-off was asked for but will not happen.
func (t *transferLeg) countAlone() { t.w.note(func() { t.w.stats.Alone++ }) }

// open is called when the scheduler gets the request, before it has memory: from
// here on a decode's heartbeats keep the KV that it names from expiring.
func (t *transferLeg) open() {
	kv := t.s.v.kv
	if kv == nil || t.w.opt.Connector.shared() {
		return
	}
	switch {
	case kv.remotePrefill:
		t.openDecode(kv)
	case kv.remoteDecode:
		t.openPrefill(kv)
	}
}

func (t *transferLeg) openPrefill(kv *transferParams) {
	v, x := t.s.v, t.w.fleet.kv
	key := ""
	switch t.w.opt.Connector {
	case NIXL:
		key = t.at.id + "/" + v.id
	case NIXLPush:
		key = t.at.id + "/push/" + v.base
	case MoRIIO:
		if kv.transferID != "" {
			key = t.at.id + "/" + v.id
		}
	case Mooncake:
		if kv.transferID != "" {
			key = t.at.id + "/" + kv.transferID
		}
	}
	if key == "" || t.w.opt.KVRole == "kv_consumer" {
		t.countAlone()
		return
	}
	if v.stream || v.long || v.many && t.s.index == 0 {
		t.violate(KVPrefill, "leaves KV for a decode with stream:%v, more than one token:%v, several sequences:%v", v.stream, v.long, v.many)
	}
	h, twice := x.expect(key, t.at)
	if twice {
		t.violate(KVTwice, "the key %q was used before", key)
		t.countAlone()
		return
	}
	t.h, t.offers = h, true
}

func (t *transferLeg) openDecode(kv *transferParams) {
	if t.w.opt.Connector == NoConnector {
		if e, _ := t.w.fleet.kv.byID(kv.engineID); e != nil {
			t.violate(KVConnector, "has no connector, but was told to take KV of %s over %s", e.worker.id, e.worker.opt.Connector)
		}
		t.countAlone()
		return
	}
	if t.w.opt.KVRole == "kv_producer" {
		t.violate(KVRole, "a kv_producer was told to take KV")
		t.countAlone()
		return
	}
	switch t.w.opt.Connector {
	case NIXL, MoRIIO:
		t.openPull(kv)
	case NIXLPush:
		if t.checkFields(kv, false) && t.findEngine(kv, kv.host, kv.port) {
			t.meet(kv.engineID + "/push/" + t.s.v.base)
		}
	case Mooncake:
		t.openMooncake(kv)
	}
}

// checkFields reports whether no required field is missing. Without remote_block_ids
// the engine crashes at once; without another one it waits for ever, and crashes when
// the client disconnects.
func (t *transferLeg) checkFields(kv *transferParams, blocks bool) bool {
	var missing []string
	for name, there := range map[string]bool{"remote_engine_id": kv.engineID != "", "remote_request_id": kv.requestID != "",
		"remote_host": kv.host != "", "remote_port": kv.hasPort, "remote_block_ids": kv.hasBlocks || !blocks} {
		if !there {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return true
	}
	slices.Sort(missing)
	t.violate(KVIncomplete, "kv_transfer_params without %s", strings.Join(missing, ", "))
	if t.s.v.client != nil {
		t.hangs = true
		return false
	}
	t.hangs, t.fatal = kv.hasBlocks || !blocks, blocks && !kv.hasBlocks
	return false
}

// findEngine finds the engine that has the KV, and reports whether it is at that
// address.
func (t *transferLeg) findEngine(kv *transferParams, host string, port int) bool {
	e, was := t.w.fleet.kv.find(kv.engineID, host, port)
	if e == nil {
		if !was {
			t.violate(KVUnknownEngine, "there never was an engine %q at %s", kv.engineID, hostPort(host, port))
		}
		t.fail(t.w.opt.TransferTimeout, "engine %s does not answer at %s", kv.engineID, hostPort(host, port))
		return false
	}
	if e.worker.opt.Connector != t.w.opt.Connector {
		t.violate(KVConnector, "%s cannot take KV of %s, which has %s", t.w.opt.Connector, e.worker.id, e.worker.opt.Connector)
		t.fail(t.w.opt.TransferTimeout, "engine %s has another connector", kv.engineID)
		return false
	}
	t.from = e
	return true
}

func (t *transferLeg) fail(after time.Duration, format string, args ...any) {
	t.failure, t.failAfter = fmt.Sprintf(format, args...), after
}

func (t *transferLeg) openPull(kv *transferParams) {
	if t.w.opt.Connector == MoRIIO && kv.transferID == "" {
		t.countAlone()
		return
	}
	if !t.checkFields(kv, true) || !t.findEngine(kv, kv.host, kv.port) {
		return
	}
	h, found := t.w.fleet.kv.claim(kv.engineID + "/" + kv.requestID)
	if h == nil {
		t.violate(KVForeign, "%s has no request %q", t.from.worker.id, kv.requestID)
		t.wrongKV = true
		return
	}
	t.h = h
	t.checkHandoff(found)
	if found == live && !slices.Equal(kv.blocks, h.blocks) {
		t.violate(KVForeign, "blocks %v are not those of request %s", kv.blocks, kv.requestID)
		t.wrongKV = true
	}
}

func (t *transferLeg) openMooncake(kv *transferParams) {
	if kv.transferID == "" {
		t.countAlone()
		return
	}
	host, port, ok := splitAddr(kv.bootstrapAddr)
	var p *Worker
	if ok {
		p = t.w.fleet.kv.byBootstrap(host, port)
	}
	e, was := t.w.fleet.kv.byID(kv.engineID)
	switch {
	case p == nil && !was && e == nil, p != nil && e == nil && !was:
		t.violate(KVUnknownEngine, "there never was an engine %q at bootstrap address %q", kv.engineID, kv.bootstrapAddr)
	case e != nil && e.worker.opt.Connector != Mooncake:
		t.violate(KVConnector, "mooncake cannot take KV of %s, which has %s", e.worker.id, e.worker.opt.Connector)
	case e != nil && e.worker != p:
		t.violate(KVUnknownEngine, "engine %q is not behind bootstrap address %q", kv.engineID, kv.bootstrapAddr)
	case e != nil:
		t.from = e
		t.meet(kv.engineID + "/" + kv.transferID)
		return
	}
	t.fail(t.w.opt.TransferTimeout, "engine %s is not at %s", kv.engineID, kv.bootstrapAddr)
}

// meet waits for a prefill that runs at the same time.
func (t *transferLeg) meet(key string) {
	h, twice := t.w.fleet.kv.expect(key, nil)
	if twice {
		t.violate(KVTwice, "the KV of %q was asked for before", key)
		t.fail(0, "the KV was asked for before")
		return
	}
	t.h, t.awaits = h, true
}

// checkHandoff looks at what was found.
func (t *transferLeg) checkHandoff(found state) {
	h, s := t.h, t.s
	t.claimed = found == live
	switch {
	case found == used:
		t.violate(KVTwice, "the KV of request %s was taken before", h.source)
		t.fail(0, "the KV was taken before")
	case found == expired && t.awaits:
		t.violate(KVExpired, "the lease of request %s of %s is over", h.source, t.w.opt.Lease)
		t.fail(0, "the KV has expired")
	case found == expired:
		t.violate(KVExpired, "the lease of request %s of %s is over", h.source, t.w.opt.Lease)
		t.wrongKV = true
	case s.prompt > h.prompt.tokens:
		t.violate(KVTooLong, "a prompt of %d tokens for KV of %d", s.prompt, h.prompt.tokens)
		t.fatal = true
	case s.v.prompt.hash != h.prompt.hash:
		t.violate(KVForeign, "the KV of request %s is that of another prompt", h.source)
		t.wrongKV = true
	}
}

// receive waits for the KV, if any is to come. The memory for it is held.
func (t *transferLeg) receive(ctx context.Context) error {
	w, s, v := t.w, t.s, t.s.v
	if c := w.opt.Connector; c.shared() {
		if w.opt.KVRole != "kv_producer" {
			// The last token is always computed: its output is the first output token.
			t.countReceived(min(w.fleet.kv.match(c, v.prompt.blocks)*w.opt.PageSize, s.prompt-1))
		}
		return nil
	}
	if t.hangs || t.failure != "" || t.fatal || t.awaits || t.h != nil && !t.offers || t.wrongKV {
		w.move(s, receiving)
	} else {
		return nil
	}
	switch {
	case t.hangs && v.client != nil:
		w.crash(t.l) // the engine ends, and the server never answers this request
		<-v.client.Done()
		return context.Cause(v.client)
	case t.hangs:
		<-ctx.Done()
		cause := context.Cause(ctx)
		var wire *wireError
		if !errors.Is(cause, errKilled) && !errors.As(cause, &wire) {
			w.crash(t.l) // the engine cannot remove such a request from its queue
		}
		return cause
	case t.awaits:
		if err := t.await(ctx); err != nil {
			return err
		}
		if t.peerLost {
			return t.lost(ctx)
		}
	}
	if t.failure != "" {
		if err := w.sleep(ctx, t.failAfter); err != nil {
			return err
		}
		return t.failed(t.failure)
	}
	if t.fatal {
		w.crash(t.l)
		return errEngineDead
	}
	if err := w.work(ctx, w.Timing().Transfer); err != nil {
		return err
	}
	if t.claimed {
		select {
		case <-t.from.lost:
			return t.lost(ctx)
		default:
		}
	}
	t.release()
	t.countReceived(s.prompt)
	if t.wrongKV {
		v.seed = mix(v.seed, 0xbad)
		if t.h != nil {
			v.seed = mix(v.seed, t.h.prompt.hash)
		}
	}
	return nil
}

// kvFailed is the error of a request whose KV did not come, with
// kv_load_failure_policy "fail".
func kvFailed(why string) error {
	return &wireError{status: 500, kind: "InternalServerError", message: "Internal server error", detail: "KV load failed: " + why, kvLoad: true}
}

// errEngineDead is the error of all requests on a worker whose engine crashed.
var errEngineDead error = &wireError{status: 500, kind: "InternalServerError",
	message: "EngineCore encountered an issue. See stack trace (above) for the root cause."}

// await is a decode's wait for the prefill that runs beside it.
func (t *transferLeg) await(ctx context.Context) error {
	timer := time.NewTimer(t.w.opt.Lease)
	defer timer.Stop()
	select {
	case <-t.h.ready:
	case <-t.from.lost:
		t.peerLost = true
		return nil
	case <-timer.C:
		t.violate(NoMeeting, "no prefill within %s", t.w.opt.Lease)
		t.fail(0, "no prefill came")
		return t.w.thawed(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.checkHandoff(t.w.fleet.kv.take(t.h))
	return t.w.thawed(ctx)
}

func (t *transferLeg) lost(ctx context.Context) error {
	if err := t.w.sleep(ctx, t.w.opt.PeerLossAfter); err != nil {
		return err
	}
	return t.failed("the peer is gone")
}

// failed ends a leg whose KV did not come. With Recompute it returns nil, and the leg
// computes the prompt itself.
func (t *transferLeg) failed(why string) error {
	t.w.note(func() { t.w.stats.TransferFailed++ })
	if t.w.opt.Recompute {
		t.countAlone()
		return nil
	}
	return kvFailed(why)
}

// countReceived counts prompt tokens whose KV came.
func (t *transferLeg) countReceived(tokens int) {
	if tokens <= 0 {
		return
	}
	t.s.v.external = tokens
	t.w.note(func() {
		t.w.stats.ExternalTokens += int64(tokens)
		t.w.counts[t.s.rank].external += tokens
		if !t.w.opt.Connector.shared() {
			t.w.stats.Pulled++
			t.w.counts[t.s.rank].pulled++
		}
	})
}

// release gives the prefill's blocks back.
func (t *transferLeg) release() {
	if t.claimed {
		t.claimed = false
		t.h.free()
	}
}

// offer leaves a prefill's KV for its decode and returns how many tokens of memory
// stay held for it.
func (t *transferLeg) offer() int {
	if !t.offers {
		return 0
	}
	w, s, l, v := t.w, t.s, t.l, t.s.v
	held := w.pages(s.prompt)
	ids := l.blocks[s.rank].take(held / w.opt.PageSize)
	w.hold(s.rank, -held)
	if !l.book(w, s.rank, held) {
		w.hold(s.rank, held)
		return 0
	}
	t.offers = false
	source := v.id
	if !w.fleet.kv.offer(t.h, t.at, v.prompt, ids, held, source) {
		if l.book(w, s.rank, -held) {
			l.blocks[s.rank].put(ids)
			l.memory[s.rank].giveBack(0, held)
		}
		return held
	}
	w.note(func() { w.stats.Handed++ })
	if !v.stream && w.opt.Connector != Mooncake {
		v.transfer = t.params(ids)
	}
	return held
}

// params is the answer's kv_transfer_params, the fields in the engine's order.
func (t *transferLeg) params(ids []int) []byte {
	b := []byte(`{"do_remote_prefill":true,"do_remote_decode":false`)
	mode := "pull"
	if t.w.opt.Connector == NIXLPush {
		mode = "push"
	} else {
		b = append(b, `,"remote_block_ids":[[`...)
		for i, id := range ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(id), 10)
		}
		b = append(b, "]]"...)
	}
	b = appendQuoted(append(b, `,"remote_engine_id":`...), t.at.id)
	b = appendQuoted(append(b, `,"remote_request_id":`...), t.s.v.id)
	b = appendQuoted(append(b, `,"remote_host":`...), t.w.opt.SideChannelHost)
	b = fmt.Appendf(b, `,"remote_port":%d,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d`+
		`,"remote_blocks_expiry_time":null,"transfer_mode":%q,"remote_prefill_cached_tokens":%d`, t.at.port, t.s.prompt+t.s.produced-1, mode, t.s.cached)
	if t.w.opt.Connector == MoRIIO {
		b = appendQuoted(append(b, `,"transfer_id":`...), t.s.v.kv.transferID)
		b = fmt.Appendf(b, `,"remote_handshake_port":%d,"remote_notify_port":%d,"remote_dp_rank":%d,"remote_dp_size":%d,"remote_dp_size_local":%d`,
			t.at.port, t.at.port+1000, t.at.rank, t.w.opt.DPSize, t.w.opt.DPSize)
	}
	return append(b, '}')
}

// end cleans up a hand-off that did not finish.
func (t *transferLeg) end(err error) {
	t.release()
	if t.h != nil && (t.offers || t.awaits) {
		t.w.fleet.kv.leave(t.h, t.offers)
	}
}
