package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/upstream"
)

// addVLLMInfo reads vLLM's GET /server_info, which exists in its development mode
// only. Told apart from SGLang's by vllm_config.
func (f *Facts) addVLLMInfo(l lenient) {
	c := l.object("vllm_config")
	f.Backend = DialectVLLM
	f.MaxRunningRequests = c.object("scheduler_config").amount("max_num_seqs")
	f.ChunkedPrefillSize = c.object("scheduler_config").amount("max_num_batched_tokens")
	transfer, told := c["kv_transfer_config"]
	switch {
	case told && string(transfer) == "null":
		f.Connector = ConnectorNone
	case told:
		f.Connector = connectorOf[strings.ToLower(c.object("kv_transfer_config").str("kv_connector"))]
	}
}

func (f *Facts) addVersion(body []byte) error {
	var l lenient
	if err := json.Unmarshal(body, &l); err != nil {
		return err
	}
	if f.Version = l.str("version"); f.Version == "" {
		return errors.New("it names no version")
	}
	return nil
}

const (
	// probeTimeout bounds the question for the connector: an idle engine answers
	// in under a second, its first request may take several.
	probeTimeout = 10 * time.Second
	maxProbeBody = 256 << 10
	// maxProbeTokens bounds its prompt.
	maxProbeTokens = 4096
)

// connector asks a vLLM prefill worker how it hands KV cache over, as nothing
// reports it over HTTP: a request for one token, which asks to leave its KV to a
// decode. What an engine so leaves is freed by its lease of some 30 s. The error
// is for what may pass; what can be said for the operator is in note.
func (p *httpProber) connector(ctx context.Context, w *Worker, f *Facts) (name, note string, err error) {
	model := w.spec.ModelID
	if names := f.names(); len(names) > 0 {
		model = names[0]
	}
	// More than a block, so that there is one to hand over. Short ids are in every
	// vocabulary.
	n := min(max(f.PageSize, 16)+1, maxProbeTokens)
	if most := f.maxModelLen(); most > 1 {
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
	status, answer, err := p.post(ctx, w, "/v1/completions", ask)
	if err == nil && (status == 404 || status == 405 || status == 400) {
		delete(ask, "prompt")
		ask["messages"] = []map[string]string{{"role": "user", "content": strings.Repeat("a ", int(n))}}
		status, answer, err = p.post(ctx, w, "/v1/chat/completions", ask)
	}
	switch {
	case err != nil:
		return "", "", err
	case status == 429 || status >= 500 && status != 501:
		return "", "", fmt.Errorf("the probe is answered %d", status)
	case status/100 != 2:
		return ConnectorUnknown, fmt.Sprintf("its connector is not known: the probe is answered %d; set kv_connector", status), nil
	}
	return p.readProbe(ctx, w, answer)
}

func (p *httpProber) readProbe(ctx context.Context, w *Worker, answer []byte) (name, note string, err error) {
	var l lenient
	if json.Unmarshal(answer, &l) != nil {
		return ConnectorUnknown, "its connector is not known: the probe is answered with something else than JSON; set kv_connector", nil
	}
	if raw, told := l["kv_transfer_params"]; !told || string(raw) == "null" {
		// Mooncake leaves nothing without a transfer id, but has a server to ask.
		if m, err := p.mooncake(ctx, w); err == nil {
			w.mooncake.Store(m)
			return ConnectorMooncake, "", nil
		}
		return ConnectorNone, "it answers the probe without kv_transfer_params: it hands no KV over, or its connector needs none; set kv_connector if there is one", nil
	}
	params := l.object("kv_transfer_params")
	host := params.str("remote_host")
	switch {
	case params["remote_notify_port"] != nil:
		return ConnectorMoRIIO, "", nil
	case host == "":
		return ConnectorUnknown, "its connector is not known: its kv_transfer_params have no remote_host; set kv_connector", nil
	case isLoopback(host) && !isLoopback(w.base.Host):
		note = fmt.Sprintf("decode workers fetch KV cache from %s, a loopback address; set VLLM_NIXL_SIDE_CHANNEL_HOST at the engine to an address that they can reach", host)
	}
	if params.str("transfer_mode") == "push" {
		w.push.Store(readPushPeer(params))
		return ConnectorNIXLPush, note, nil
	}
	return ConnectorNIXL, note, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *httpProber) post(ctx context.Context, w *Worker, path string, v any) (status int, body []byte, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return 0, nil, err
	}
	header := append(slices.Clone(probeHeader), upstream.Field{Name: "Content-Type", Value: "application/json"})
	return p.send(ctx, w.endpoint, &upstream.Request{
		Method: "POST", Path: path, Header: header, Body: [][]byte{b}, Limits: upstream.Limits{Total: probeTimeout},
	}, maxProbeBody)
}
