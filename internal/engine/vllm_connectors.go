package engine

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
)

// Connectors of vLLM, as they are set for workers or found out.
const (
	ConnectorNIXL     = "nixl"
	ConnectorNIXLPush = "nixl-push"
	ConnectorMooncake = "mooncake"
	ConnectorMoRIIO   = "moriio"
	// ConnectorLMCache and ConnectorShared move the KV cache by themselves: the
	// prompt is prefilled, then sent to decode as it is.
	ConnectorLMCache = "lmcache"
	ConnectorShared  = "shared-storage"
	// ConnectorNone: the engine was asked and names no KV cache to fetch. Decode
	// computes the prompt again.
	ConnectorNone = "none"
	// ConnectorUnknown: it could not be found out. It is tried as NIXL.
	ConnectorUnknown = "unknown"
)

// connector is how a vLLM engine hands KV cache over.
type connector struct {
	// shape is that of requests for one sequence.
	shape Shape
	// handsOver: the prefill's answer has the params for decode.
	handsOver bool
	// prefillParams and decodeParams are the kv_transfer_params of the legs, where
	// they do not come from a prefill's answer. Nil: there are none.
	prefillParams, decodeParams func(p *Pair, t transfer) []byte
	// prepare changes the plan by what is known of the prefill rank. It may be nil.
	prepare func(p *Pair, plan *Plan) error
}

// transfer is what the hand-off of one sequence is called: its own id, and the id by which the
// prefill engine knows the request.
type transfer struct{ id, request string }

var connectors = map[string]*connector{
	ConnectorNIXL:     {shape: PrefillFirst, handsOver: true, prefillParams: nixlPrefill},
	ConnectorUnknown:  {shape: PrefillFirst, handsOver: true, prefillParams: nixlPrefill},
	ConnectorMoRIIO:   {shape: PrefillFirst, handsOver: true, prefillParams: moriioPrefill},
	ConnectorMooncake: {shape: Together, prefillParams: mooncakePrefill, decodeParams: mooncakeDecode, prepare: prepareMooncake},
	ConnectorNIXLPush: {shape: Together, prefillParams: nixlPrefill, decodeParams: pushDecode, prepare: preparePush},
	ConnectorNone:     {shape: DecodeAlone},
	ConnectorLMCache:  &movesByItself,
	ConnectorShared:   &movesByItself,
}

var movesByItself = connector{shape: PrefillFirst}

func connectorNamed(name string) *connector {
	if c := connectors[name]; c != nil {
		return c
	}
	return &movesByItself
}

// nixlParams ask a vLLM prefill engine with NixlConnector to keep the KV blocks for a
// decode engine and to say in its answer where they are.
const nixlParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func nixlPrefill(*Pair, transfer) []byte { return []byte(nixlParams) }

func moriioPrefill(_ *Pair, t transfer) []byte {
	b := append([]byte(nil), nixlParams[:len(nixlParams)-1]...)
	b = append(b, `,"transfer_id":`...)
	return append(openai.AppendString(b, "tx-"+t.id), '}')
}

// prepareMooncake: the legs are paired by a transfer id; without one nothing is
// transferred, silently. Decode is told beforehand which engine prefills, so that of
// several ranks one is named even where the worker is scheduled as a whole.
func prepareMooncake(p *Pair, plan *Plan) error {
	m, _ := p.Prefill.Peer().(*MooncakePeer)
	if plan.PrefillRank < 0 && m != nil && len(m.EngineIDs) > 1 {
		plan.PrefillRank = m.anyRank()
	}
	id, ok := m.engineID(max(plan.PrefillRank, 0))
	if !ok {
		return errNoEngineID
	}
	p.engineID = id
	return nil
}

func mooncakePrefill(_ *Pair, t transfer) []byte {
	b := append([]byte(nil), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":`...)
	return append(openai.AppendString(b, "xfer-"+t.id), '}')
}

// mooncakeDecode names the prefill engine's bootstrap server, and its engine as the
// server's /query does.
func mooncakeDecode(p *Pair, t transfer) []byte {
	host, port, _ := p.Prefill.Bootstrap()
	b := append([]byte(nil), `{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`...)
	b = openai.AppendString(b, "http://"+host+":"+strconv.Itoa(port))
	b = append(b, `,"remote_engine_id":`...)
	b = openai.AppendString(b, p.engineID)
	b = append(b, `,"transfer_id":`...)
	return append(openai.AppendString(b, "xfer-"+t.id), '}')
}

// preparePush: the legs meet by the request's id, which must be a new one: clients
// repeat theirs.
func preparePush(p *Pair, plan *Plan) error {
	peer, ok := p.Prefill.Peer().(*PushPeer)
	if !ok {
		plan.Shape, plan.Why, p.transferID = DecodeAlone, AloneNoConnector, ""
		return nil
	}
	if plan.PrefillRank < 0 && peer.Ranks > 1 {
		plan.PrefillRank = rand.IntN(peer.Ranks) // decode is told beforehand which prefills
	}
	p.pushPeer = peer.of(plan.PrefillRank)
	p.RequestID += "-" + p.transferID
	plan.RequestID = p.RequestID
	return nil
}

// pushDecode tells decode of the prefill engine and of its name for the request.
func pushDecode(p *Pair, t transfer) []byte { return p.pushPeer.params(t.request) }

// PushPeer is what a decode engine must be told of a prefill engine that pushes
// KV cache to it (vLLM's NixlPushConnector), before that one has answered
// anything.
type PushPeer struct {
	EngineID, Host string
	Port           int64
	TPSize, PPSize int64
	// Rank is the data-parallel rank that this is of, Ranks how many the worker has; 0:
	// it has no others.
	Rank, Ranks int
}

// RankMark stands before the number of the data-parallel rank that ends an engine's id.
const RankMark = "_dp"

// OfSeveral says that the worker has n data-parallel ranks, of which the first is the
// first-th of the model. Which of them p is of is the end of its id.
func (p *PushPeer) OfSeveral(first, n int) {
	at := strings.LastIndex(p.EngineID, RankMark)
	if at < 0 {
		return
	}
	if dp, err := strconv.Atoi(p.EngineID[at+len(RankMark):]); err == nil && dp >= first && dp-first < n {
		p.Rank, p.Ranks = dp-first, n
	}
}

// of is what decode must be told of another rank of the same worker. The engines of one
// worker differ in the number at the end of their ids and, by as much, in their ports.
func (p *PushPeer) of(rank int) *PushPeer {
	at := strings.LastIndex(p.EngineID, RankMark)
	if rank < 0 || rank == p.Rank || p.Ranks < 2 || at < 0 {
		return p
	}
	n, err := strconv.Atoi(p.EngineID[at+len(RankMark):])
	if err != nil {
		return p
	}
	by := rank - p.Rank
	o := *p
	o.EngineID, o.Port, o.Rank = p.EngineID[:at+len(RankMark)]+strconv.Itoa(n+by), p.Port+int64(by), rank
	return &o
}

// params are the decode leg's kv_transfer_params. requestID is the engine's name
// for the prefill's request.
func (p *PushPeer) params(requestID string) []byte {
	b, err := json.Marshal(map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false,
		"remote_engine_id": p.EngineID, "remote_host": p.Host, "remote_port": p.Port,
		"tp_size": p.TPSize, "pp_size": p.PPSize, "remote_request_id": requestID,
	})
	if err != nil {
		panic("BUG: " + err.Error()) // strings and numbers
	}
	return b
}
