package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// vllmConnectors are the connectors. Their spellings are, besides the names, the classes
// that vLLM's --kv-transfer-config takes.
var vllmConnectors = Connectors{
	Of:      "vLLM",
	Names:   []string{ConnectorNIXL, ConnectorNIXLPush, ConnectorMooncake, ConnectorMoRIIO, ConnectorLMCache, ConnectorShared, ConnectorNone},
	Unknown: ConnectorUnknown,
	Spellings: map[string]string{
		ConnectorNIXL: ConnectorNIXL, "nixlconnector": ConnectorNIXL, "nixlpullconnector": ConnectorNIXL,
		ConnectorNIXLPush: ConnectorNIXLPush, "nixlpushconnector": ConnectorNIXLPush,
		ConnectorMooncake: ConnectorMooncake, "mooncakeconnector": ConnectorMooncake,
		ConnectorMoRIIO: ConnectorMoRIIO, "moriioconnector": ConnectorMoRIIO,
		ConnectorLMCache: ConnectorLMCache, "lmcacheconnectorv1": ConnectorLMCache, "lmcachempconnector": ConnectorLMCache,
		ConnectorShared: ConnectorShared, "sharedstorageconnector": ConnectorShared, "exampleconnector": ConnectorShared,
		ConnectorNone: ConnectorNone,
	},
	Preference: func(name string) int {
		switch name {
		case ConnectorUnknown:
			return 0
		case ConnectorNone:
			return 1
		case ConnectorNIXL:
			return 3
		}
		return 2
	},
}

// Connectors implements Pairer.
func (VLLM) Connectors() *Connectors { return &vllmConnectors }

// PairForm implements Pairer: the connector and the form of the cache.
func (VLLM) PairForm(connector string, f *Facts) string {
	form := "/" + connector
	switch t := f.CacheType; t {
	case "", "auto", "float16", "half", "bfloat16", "float", "float32":
		// The model's own, or what may be.
	default:
		form += "/" + t
	}
	return form
}

// PairReady implements Pairer.
func (VLLM) PairReady(k PairKnowledge) bool {
	if k.Connector == ConnectorMooncake {
		_, ok := k.Peer.(*MooncakePeer)
		return ok
	}
	return k.Connector != ""
}

// UsesBootstrap implements Pairer.
func (VLLM) UsesBootstrap(connector string) bool { return connector == ConnectorMooncake }

// Warnings implements Pairer.
func (VLLM) Warnings(k PairKnowledge) (list []string) {
	if m, _ := k.Peer.(*MooncakePeer); m != nil && len(m.EngineIDs) > 1 && k.SetConnector == ConnectorMooncake && k.Prefill && k.Ranks == 1 {
		list = append(list, fmt.Sprintf("it has %d data-parallel ranks with an engine id each, and is scheduled as one: set dp_aware", len(m.EngineIDs)))
	}
	return list
}

// maxProbeTokens bounds the prompt of the question for the connector.
const maxProbeTokens = 4096

// FindConnector implements Pairer. Nothing reports the connector over HTTP, so that it
// takes a request for one token, which asks to leave its KV to a decode. What an engine
// so leaves is freed by its lease of some 30 s.
func (VLLM) FindConnector(ctx context.Context, w Probed, f *Facts) (Found, error) {
	model := w.Model
	if names := f.Names(); len(names) > 0 {
		model = names[0]
	}
	// More than a block, so that there is one to hand over. Short ids are in every
	// vocabulary.
	n := min(max(f.PageSize, 16)+1, maxProbeTokens)
	if most := f.MaxModelLen(); most > 1 {
		n = min(n, most-1)
	}
	prompt := make([]int, n)
	for i := range prompt {
		prompt[i] = 3 + i%5
	}
	ask := map[string]any{
		"model": model, "max_tokens": 1, "stream": false, "temperature": 0,
		"kv_transfer_params": map[string]any{"do_remote_decode": true},
		"prompt":             prompt,
	}
	status, answer, err := post(ctx, w, "/v1/completions", ask)
	if err == nil && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusBadRequest) {
		delete(ask, "prompt")
		ask["messages"] = []map[string]string{{"role": "user", "content": strings.Repeat("a ", int(n))}}
		status, answer, err = post(ctx, w, "/v1/chat/completions", ask)
	}
	switch {
	case err != nil:
		return Found{}, err
	case status == http.StatusTooManyRequests || status >= 500 && status != http.StatusNotImplemented:
		return Found{}, fmt.Errorf("the probe is answered %d", status)
	case status/100 != 2:
		return unknownConnector("the probe is answered %d", status), nil
	}
	found := readProbe(ctx, w, answer)
	if p, _ := found.Peer.(*PushPeer); p != nil && f.DPSize > 1 {
		p.OfSeveral(f.FirstRank, f.DPSize)
	}
	return found, nil
}

func post(ctx context.Context, w Probed, path string, v any) (status int, body []byte, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return 0, nil, err
	}
	return w.Ask(ctx, Question{Method: http.MethodPost, Path: path, Body: b})
}

func unknownConnector(why string, args ...any) Found {
	return Found{Connector: ConnectorUnknown, Note: fmt.Sprintf("its connector is not known: "+why+"; set kv_connector", args...)}
}

// readProbe tells the connector by the answer to the question for it.
func readProbe(ctx context.Context, w Probed, answer []byte) Found {
	var o Fields
	if json.Unmarshal(answer, &o) != nil {
		return unknownConnector("the answer to the probe is not JSON")
	}
	if raw, told := o["kv_transfer_params"]; !told || string(raw) == "null" {
		// Mooncake leaves nothing without a transfer id, but has a server to ask.
		if m, err := askMooncake(ctx, w); err == nil {
			return Found{Connector: ConnectorMooncake, Peer: m}
		}
	}
	return FoundByParams(o["kv_transfer_params"], w.Host)
}

// FoundByParams tells the connector of a vLLM engine at a host by the kv_transfer_params of a
// prefill whose KV cache is to be handed over, as they are written; none are those of an engine
// that hands nothing over.
func FoundByParams(raw []byte, at string) Found {
	if len(raw) == 0 || string(raw) == "null" {
		return Found{Connector: ConnectorNone, Note: "it answers the probe without kv_transfer_params: it does not hand KV over, or its connector needs no parameters; set kv_connector if there is one"}
	}
	params := Fields{"": raw}.Object("")
	host, note := params.Str("remote_host"), ""
	switch {
	case params["remote_notify_port"] != nil:
		return Found{Connector: ConnectorMoRIIO}
	case host == "":
		return unknownConnector("its kv_transfer_params have no remote_host")
	case isLoopback(host) && !isLoopback(at):
		note = fmt.Sprintf("decode workers fetch KV cache from %s, a loopback address; set VLLM_NIXL_SIDE_CHANNEL_HOST at the engine to an address that they can reach", host)
	}
	if params.Str("transfer_mode") == "push" {
		found := Found{Connector: ConnectorNIXLPush, Note: note}
		if p, ok := readPushPeer(params); ok {
			found.Peer = p
		}
		return found
	}
	return Found{Connector: ConnectorNIXL, Note: note}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// readPushPeer reads it out of the answer's kv_transfer_params; ok is false if they do
// not have it all.
func readPushPeer(params Fields) (p *PushPeer, ok bool) {
	p = &PushPeer{
		EngineID: params.Str("remote_engine_id"), Host: params.Str("remote_host"),
		Port: params.Num("remote_port"), TPSize: params.Num("tp_size"), PPSize: max(params.Num("pp_size"), 1),
	}
	return p, p.EngineID != "" && p.Host != "" && p.Port != 0 && p.TPSize != 0
}
