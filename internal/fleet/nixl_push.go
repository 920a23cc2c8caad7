package fleet

import "github.com/sluice-router/sluice/internal/engine"

// readPushPeer reads it out of the probe's kv_transfer_params; nil if they do not
// have it all.
func readPushPeer(params lenient) *engine.PushPeer {
	p := &engine.PushPeer{
		EngineID: params.str("remote_engine_id"), Host: params.str("remote_host"),
		Port: params.num("remote_port"), TPSize: params.num("tp_size"), PPSize: max(params.num("pp_size"), 1),
	}
	if p.EngineID == "" || p.Host == "" || p.Port == 0 || p.TPSize == 0 {
		return nil
	}
	return p
}

// PushPeer returns what decode must know of the rank; ok is false while it is
// not known, as for workers whose connector was set and not found out.
func (r *Rank) PushPeer() (p engine.PushPeer, ok bool) {
	if at := r.worker.push.Load(); at != nil {
		return *at, true
	}
	return p, false
}
