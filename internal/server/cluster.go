package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// Cluster is this router as a member of a gate that several routers share.
type Cluster interface {
	// Status is what this member knows.
	Status() cluster.Status
	// GateStats is the state of the gate: that of all members (whole), as the keeper told
	// it age ago, or that of this one while it decides alone. It waits a second at most
	// for the keeper, and tells the last answer, with its age, when none comes; the error
	// is that there was none yet.
	GateStats(ctx context.Context) (s admission.Stats, age time.Duration, whole bool, err error)
	// Ended is an operator's word that the member of that name is gone for good; see
	// cluster.ErrNoMember, ErrAnswers.
	Ended(name string) error
	// HandOver gives the office of the keeper to another member, and returns when that is
	// done; see cluster.ErrNotKeeper, ErrNoSuccessor.
	HandOver(ctx context.Context) error
}

// handOverLimit is how long POST /cluster/handover waits for the other member.
const handOverLimit = 5 * time.Second

// The JSON document of /cluster. Times are in milliseconds.
type (
	clusterDoc struct {
		Name     string     `json:"name"`
		Self     memberDoc  `json:"self"`
		Role     string     `json:"role"`
		Fallback string     `json:"fallback"`
		Store    storeDoc   `json:"store"`
		HeardMS  *int64     `json:"keeper_heard_ms"`
		Promised epochDoc   `json:"promised"`
		Tickets  int        `json:"requests"`
		Parked   int        `json:"parked"`
		Shares   []shareDoc `json:"shares"`

		// What follows is what the keeper says, as of view_age_ms ago.
		ViewAgeMS *int64       `json:"view_age_ms"`
		Epoch     epochDoc     `json:"epoch"`
		Keeper    string       `json:"keeper"`
		Standby   string       `json:"standby"`
		Deciding  bool         `json:"deciding"`
		WhyNot    string       `json:"why_not"`
		Waiting   int          `json:"waiting"`
		Suspended int          `json:"suspended"`
		Settings  string       `json:"settings_of"`
		Members   []memberDoc  `json:"members"`
		Claims    []claimDoc   `json:"claims"`
		SharesOf  sharesOfDoc  `json:"shares_in_force"`
		Differ    []string     `json:"config_differs"`
		Protocol  *protocolDoc `json:"protocol,omitempty"`
	}
	epochDoc struct {
		Number uint64 `json:"number"`
		Keeper string `json:"keeper"` // its incarnation
	}
	memberDoc struct {
		Name        string      `json:"name"`
		Incarnation string      `json:"incarnation"`
		Address     string      `json:"address"`
		Build       string      `json:"build"`
		Protocol    protocolDoc `json:"protocol"`
		Seat        uint64      `json:"seat"`
		// Of another's view.
		State      string  `json:"state,omitempty"`
		RoundMS    float64 `json:"round_trip_ms,omitempty"`
		AnsweredMS int64   `json:"last_answered_ms,omitempty"`
		Holds      int     `json:"holds"`
		Waiting    int     `json:"waiting"`
		Generation uint64  `json:"config_generation,omitempty"`
		Digest     string  `json:"config_digest,omitempty"`
		Differs    bool    `json:"config_differs,omitempty"`
	}
	protocolDoc struct {
		Min uint32 `json:"min"`
		Max uint32 `json:"max"`
	}
	storeDoc struct {
		URL       string `json:"url"`
		ReadMS    *int64 `json:"read_ms_ago"`
		WrittenMS *int64 `json:"written_ms_ago"`
		Writes    uint64 `json:"writes"`
		Error     string `json:"error"`
	}
	shareDoc struct {
		Rank  string `json:"rank"`
		Limit int64  `json:"limit"`
		Share int64  `json:"share"`
	}
	sharesOfDoc struct {
		Version  uint64 `json:"version"`
		Proposed bool   `json:"proposed"`
	}
	claimDoc struct {
		Member string `json:"member"`
		Rank   string `json:"rank"`
		// What is set aside.
		Slots         int   `json:"prefill_slots"`
		PrefillTokens int64 `json:"prefill_tokens"`
		Decode        int   `json:"decode_requests"`
		DecodeBlocks  int64 `json:"decode_blocks"`
		LeftMS        int64 `json:"left_ms"`
	}
	// gateOfDoc tells in GET /admission of which routers it tells.
	gateOfDoc struct {
		Role      string   `json:"role"`
		Keeper    string   `json:"keeper"`
		Whole     bool     `json:"whole"`
		ViewAgeMS int64    `json:"view_age_ms"`
		Members   int      `json:"members"`
		Fallback  string   `json:"fallback,omitempty"`
		Differ    []string `json:"config_differs,omitempty"`
		Error     string   `json:"error,omitempty"`
	}
)

// cluster tells what this member knows of the others.
func (q *request) cluster() {
	c := q.s.opts.Cluster
	if c == nil {
		q.refuse(noCluster(), reasonNoCluster)
		return
	}
	st := c.Status()
	doc := clusterOf(&st)
	doc.Name, doc.Store.URL = q.s.cfg.Cluster.Name, q.s.cfg.Cluster.URL.String()
	q.document(http.StatusOK, &doc)
}

func clusterOf(st *cluster.Status) clusterDoc {
	d := clusterDoc{
		Self: memberOf(&st.Self), Role: st.Role, Fallback: st.Fallback, Promised: epochOf(st.Promised),
		HeardMS: agoOf(st.Heard),
		Store:   storeDoc{ReadMS: agoOf(st.StoreRead), WrittenMS: agoOf(st.StoreWritten), Writes: st.StoreWrites, Error: st.StoreError},
		Tickets: st.Tickets, Parked: st.Parked, Shares: []shareDoc{}, Members: []memberDoc{}, Claims: []claimDoc{}, Differ: []string{},
	}
	for _, s := range st.Shares {
		d.Shares = append(d.Shares, shareDoc(s))
	}
	v := st.View
	if v == nil {
		d.WhyNot = "this member has heard no keeper yet"
		return d
	}
	d.ViewAgeMS = new(ms(st.ViewAge))
	d.Epoch, d.Keeper, d.Standby, d.Deciding, d.WhyNot = epochOf(v.Epoch), v.Keeper, v.Standby, st.Decides(), v.WhyNot
	switch {
	case st.Promised.Number > v.Epoch.Number:
		// It tells nothing before its gate is open.
		d.Deciding, d.Keeper, d.Standby = false, promisedKeeper(st), ""
		d.WhyNot = "a new keeper was elected and its gate is not open yet: GET /cluster there says what it waits for"
	case v.Deciding && !d.Deciding:
		d.WhyNot = "this member does not hear the keeper"
	}
	d.Waiting, d.Suspended, d.Settings = v.Waiting, v.Suspended, v.Settings
	d.SharesOf = sharesOfDoc{v.Shares, v.Proposed}
	for i := range v.Members {
		m := &v.Members[i]
		one := memberOf(&m.Member)
		if m.Incarnation == st.Self.Incarnation {
			d.Self.Seat = m.Seat
		}
		one.State, one.RoundMS, one.AnsweredMS = m.State, float64(m.Round)/float64(time.Millisecond), ms(m.Heard)
		one.Holds, one.Waiting, one.Generation, one.Digest, one.Differs = m.Holds, m.Waiting, m.Generation, m.Digest, m.Differs
		d.Members = append(d.Members, one)
		if p := &one.Protocol; d.Protocol == nil {
			d.Protocol = &protocolDoc{p.Min, p.Max}
		} else {
			d.Protocol.Min, d.Protocol.Max = max(d.Protocol.Min, p.Min), min(d.Protocol.Max, p.Max)
		}
	}
	d.Differ = differing(v)
	for _, c := range v.Claims {
		d.Claims = append(d.Claims, claimDoc{
			Member: c.Member, Rank: c.Rank, Slots: c.Slots, PrefillTokens: c.Tokens,
			Decode: c.Pending + c.Active, DecodeBlocks: c.PendingBlocks + c.ActiveBlocks, LeftMS: ms(c.Until),
		})
	}
	return d
}

// agoOf is how long ago something was; nil: it never was.
func agoOf(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	return new(ms(d))
}

func memberOf(m *cluster.Member) memberDoc {
	return memberDoc{Name: m.Name, Incarnation: m.Incarnation.String(), Address: m.Address, Build: m.Build, Seat: m.Seat,
		Protocol: protocolDoc{m.Versions.Min, m.Versions.Max}}
}

func epochOf(e cluster.Epoch) epochDoc { return epochDoc{e.Number, e.Keeper.String()} }

// differing are the names of the members whose configuration is not the one in force.
func differing(v *cluster.ClusterView) []string {
	list := []string{}
	for i := range v.Members {
		if v.Members[i].Differs {
			list = append(list, v.Members[i].Name)
		}
	}
	return list
}

// gateStats is the state of the gate, and of which routers it is; nil: of this one, which
// is alone.
func (q *request) gateStats() (admission.Stats, *gateOfDoc) {
	c := q.s.opts.Cluster
	if c == nil {
		return q.s.opts.Gate.Snapshot(), nil
	}
	st := c.Status()
	of := &gateOfDoc{Role: st.Role, Fallback: st.Fallback}
	if v := st.View; v != nil {
		of.Keeper, of.Members, of.Differ = v.Keeper, len(v.Members), differing(v)
	}
	stats, age, whole, err := c.GateStats(q.r.Context())
	of.Whole, of.ViewAgeMS = whole, ms(age)
	if err != nil {
		of.Error = text.Line(err.Error())
		if st.View != nil && st.View.WhyNot != "" {
			of.Error = st.View.WhyNot
		}
		return q.s.opts.Gate.Snapshot(), of
	}
	return stats, of
}

const (
	pathCluster  = "/cluster"
	pathHandOver = pathCluster + "/handover"
	pathMembers  = pathCluster + "/members/"
	suffixEnded  = "/ended"
)

// handOverRoute is /cluster/handover, endedRoute /cluster/members/{name}/ended.
var (
	handOverRoute = &route{name: "cluster_handover", access: map[string]access{http.MethodPost: admin}, allow: []string{http.MethodPost}, serve: (*request).handOver}
	endedRoute    = &route{name: "cluster_ended", access: map[string]access{http.MethodPost: admin}, allow: []string{http.MethodPost}, serve: (*request).memberEnded}
)

// endedMember is the name in the path of endedRoute; ok is false for other paths.
func endedMember(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, pathMembers)
	name, ended := strings.CutSuffix(rest, suffixEnded)
	return name, ok && ended && name != "" && !strings.Contains(name, "/")
}

// memberEnded takes an operator's word that a lost member is gone for good.
func (q *request) memberEnded() {
	c := q.s.opts.Cluster
	if c == nil {
		q.refuse(noCluster(), reasonNoCluster)
		return
	}
	name, _ := endedMember(q.r.URL.Path)
	err := error(nil)
	if st := c.Status(); st.Decides() && answersKeeper(st.View, name) {
		err = cluster.ErrAnswers // though perhaps not this one
	} else {
		err = c.Ended(name)
	}
	if err != nil {
		q.refuseCluster(name, err)
		return
	}
	q.log("a member of the cluster is said to have ended", "member", text.Line(name))
	q.document(http.StatusOK, map[string]string{"member": name, "state": "ended"})
}

// answersKeeper tells whether the keeper hears the member of that name.
func answersKeeper(v *cluster.ClusterView, name string) bool {
	return slices.ContainsFunc(v.Members, func(m cluster.MemberView) bool { return m.Name == name && m.State == "answering" })
}

// handOver gives the office of the keeper to another member.
func (q *request) handOver() {
	c := q.s.opts.Cluster
	if c == nil {
		q.refuse(noCluster(), reasonNoCluster)
		return
	}
	ctx, cancel := context.WithTimeout(q.r.Context(), handOverLimit)
	defer cancel()
	if err := c.HandOver(ctx); err != nil {
		q.refuseCluster("", err)
		return
	}
	q.log("the office of the keeper is handed over by request")
	st := c.Status()
	q.document(http.StatusOK, map[string]string{"role": st.Role, "keeper": promisedKeeper(&st)})
}

// promisedKeeper is the name of the keeper that the member obeys, which may be later than
// the one that told the view; "": the view does not list it.
func promisedKeeper(st *cluster.Status) string {
	if st.View != nil {
		for i := range st.View.Members {
			if m := &st.View.Members[i]; m.Incarnation == st.Promised.Keeper {
				return m.Name
			}
		}
	}
	return ""
}

// refuseCluster tells why the cluster did not do what an operator asked for.
func (q *request) refuseCluster(member string, err error) {
	e := &openai.Error{Status: http.StatusConflict, Type: typeInvalidRequest, Code: codeClusterState}
	switch {
	case errors.Is(err, cluster.ErrNoMember):
		e = memberNotFound(member)
	case errors.Is(err, cluster.ErrAnswers):
		e.Message = fmt.Sprintf("the member %q answers the others, so that it has not ended; stop it first", text.Line(member))
	case errors.Is(err, cluster.ErrNotKeeper):
		e.Message = "this member does not decide for the others; send the request to the one that GET /cluster names as the keeper"
		if v := q.s.opts.Cluster.Status().View; v != nil && v.Keeper != "" {
			e.Message += ": " + text.Line(v.Keeper)
		}
	case errors.Is(err, cluster.ErrNoSuccessor):
		e.Message = "there is no other member that could take over"
	case errors.Is(err, context.DeadlineExceeded):
		e.Status, e.Type = http.StatusGatewayTimeout, typeServerError
		e.Message = "the other member did not take over in time; GET /cluster tells who decides"
	default:
		e.Status, e.Type, e.Message = http.StatusServiceUnavailable, typeServerError, text.Line(err.Error())
	}
	q.refuse(e, reasonClusterState)
}

func memberNotFound(name string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: typeInvalidRequest, Code: codeMemberNotFound,
		Message: fmt.Sprintf("there is no member %q; GET /cluster lists those there are", text.Line(name))}
}

func noCluster() *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: typeInvalidRequest, Code: codeNoCluster,
		Message: "this router is alone: it is no member of a cluster (--cluster)"}
}
