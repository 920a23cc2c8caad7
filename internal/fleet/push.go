package fleet

import "encoding/json"

// PushPeer is what a decode engine must be told of a prefill engine that pushes
// KV cache to it (vLLM's NixlPushConnector), before that one has answered
// anything. It comes from the probe, and is another after a restart.
type PushPeer struct {
	EngineID, Host string
	Port           int64
	TPSize, PPSize int64
}

// readPushPeer reads it out of the probe's kv_transfer_params; nil if they do not
// have it all.
func readPushPeer(params lenient) *PushPeer {
	p := &PushPeer{
		EngineID: params.str("remote_engine_id"), Host: params.str("remote_host"),
		Port: params.num("remote_port"), TPSize: params.num("tp_size"), PPSize: max(params.num("pp_size"), 1),
	}
	if p.EngineID == "" || p.Host == "" || p.Port == 0 || p.TPSize == 0 {
		return nil
	}
	return p
}

// PushPeer returns what decode must be told of the rank; ok is false while it is
// not known, as for workers whose connector was set and not found out.
func (r *Rank) PushPeer() (p PushPeer, ok bool) {
	if at := r.worker.push.Load(); at != nil {
		return *at, true
	}
	return p, false
}

// Params are the decode leg's kv_transfer_params. requestID is the engine's name
// for the prefill's request.
func (p PushPeer) Params(requestID string) []byte {
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
