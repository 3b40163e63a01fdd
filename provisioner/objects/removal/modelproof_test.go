package removal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
)

// objectsRead are all that the predicates can read, made once.
type objectsRead struct {
	volumes [volumes + 1][uids + 1][len(statuses)][2]cinder.Volume
	claims  [uids + 1][2]*corev1.PersistentVolumeClaim
	pvs     [uids + 1][volumes + 1]*corev1.PersistentVolume
}

func stampOf(uid uint8) stamps.Volume {
	name := fmt.Sprintf("uid-%d", uid)
	return stamps.Volume{Cluster: "cluster", ClusterUID: "kube-system", Namespace: "team", Claim: "data", ClaimUID: name, PV: objects.PVNameFor(name)}
}

// numberOf returns the number of a volume, which its time has.
func numberOf(v cinder.Volume) uint8 { return uint8(v.CreatedAt.Unix()) }

func newObjectsRead() *objectsRead {
	all := &objectsRead{}
	for uid := uint8(1); uid <= uids; uid++ {
		stamp := stampOf(uid)
		for bound := range all.claims[uid] {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: stamp.Namespace, Name: stamp.Claim, UID: types.UID(stamp.ClaimUID)}}
			if bound == 1 {
				claim.Spec.VolumeName = stamp.PV
			}
			all.claims[uid][bound] = claim
		}
		for id := uint8(1); id <= volumes; id++ {
			for status := range statuses {
				for attached := range 2 {
					v := cinder.Volume{ID: fmt.Sprintf("volume-%d", id), Status: statuses[status], Metadata: stamp.Metadata(nil), CreatedAt: time.Unix(int64(id), 0)}
					if attached == 1 {
						v.Metadata[cinder.MetadataReadOnly] = "False"
					}
					all.volumes[id][uid][status][attached] = v
				}
			}
			pv := objects.NewPersistentVolume(objects.Provisioned{
				Name: stamp.PV, Claim: all.claims[uid][0], Class: &storagev1.StorageClass{}, Cluster: stamp.Cluster, Backend: "gold",
				Connector: &cinder.Connector{}, Connected: backends.Connected{Volume: all.volumes[id][uid][attaching][0]},
			})
			pv.Annotations[objects.AnnotationProvisionedBy] = "test"
			all.pvs[uid][id] = pv
		}
	}
	return all
}

// shownAs returns a volume as the backend gets it; the zero Volume if it does not exist.
func (o *objectsRead) shownAs(id uint8, v volume) cinder.Volume {
	attached := 0
	if v.attached {
		attached = 1
	}
	return o.volumes[id][v.uid][v.status][attached]
}

// proof is the API server for one call of a proof, which is repeated for each of its
// requests: the earlier requests get the answers that they got, the next one gets the
// present answer, and any after that is interrupted. So the world may change between any
// two requests, in whatever order the proof makes them.
type proof struct {
	kubernetes.Interface
	typedcore.CoreV1Interface
	m     *model
	s     *state
	l     *leader
	asked uint8
	whole bool // nothing is interrupted
}

var errInterrupted, errNotThere = errors.New("interrupted"), apierrors.NewNotFound(schema.GroupResource{}, "it")

func (p *proof) answer(present uint8) (uint8, error) {
	p.asked++
	switch at := p.asked - 1; {
	case p.whole:
		return present, nil
	case at < p.l.reads:
		return p.l.answers[at], nil
	case at > p.l.reads:
		return 0, errInterrupted
	default:
		p.l.answers[at] = present
		return present, nil
	}
}

// source is where the proof reads.
func (p *proof) source() *kube {
	if p.m.readsCache {
		return &p.l.cache
	}
	return &p.s.now
}

type persistentVolumes struct {
	typedcore.PersistentVolumeInterface
	proof *proof
}

type claims struct {
	typedcore.PersistentVolumeClaimInterface
	proof *proof
}

func (p *proof) CoreV1() typedcore.CoreV1Interface { return p }

func (p *proof) PersistentVolumes() typedcore.PersistentVolumeInterface {
	return persistentVolumes{proof: p}
}

func (p *proof) PersistentVolumeClaims(string) typedcore.PersistentVolumeClaimInterface {
	return claims{proof: p}
}

func (c persistentVolumes) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.PersistentVolume, error) {
	p := c.proof
	for uid := uint8(1); uid <= uids; uid++ {
		if p.m.pvs[uid][1].Name != name {
			continue
		}
		id, err := p.answer(p.source().names[uid])
		if err == nil && id == 0 {
			err = errNotThere
		}
		return p.m.pvs[uid][id], err
	}
	return nil, errNotThere
}

func (c claims) Get(context.Context, string, metav1.GetOptions) (*corev1.PersistentVolumeClaim, error) {
	p := c.proof
	present := 2 * p.source().claim
	if p.source().bound {
		present++
	}
	answer, err := p.answer(present)
	uid := answer / 2
	if err == nil && uid == 0 {
		err = errNotThere
	}
	if p.m.comparesNames {
		uid = p.l.uid
	}
	return p.m.claims[uid][answer%2], err
}

// cleaner is the real one. Nothing that a node could list is left after a pod.
func (p *proof) cleaner() removal.Cleaner {
	return removal.Cleaner{
		Client: p, ProvisionerName: "test", Cluster: "cluster", ClusterUID: "kube-system",
		UseOf: func(stamps.Volume) *nodeuse.Volume { return nil },
		RecordedBy: func(v cinder.Volume) string {
			if p.l.recorded&(1<<numberOf(v)) != 0 {
				return stamps.Of(v).PV
			}
			return ""
		},
	}
}

// permit is the leader's real permit. Once the proof was given, it only looks at the cache.
func (m *model) permit(s *state, l *leader, proven bool) backends.Permit {
	cleaner := (&proof{m: m, s: s, l: l}).cleaner()
	prove := cleaner.IsUnneeded
	switch {
	case l.unrecorded || m.skipsClaim:
		prove = cleaner.IsUnrecorded
	case m.readsClaimLast:
		prove = func(ctx context.Context, v cinder.Volume) error {
			err := cleaner.IsUnrecorded(ctx, v)
			if err != nil {
				return err
			}
			claim, err := objects.ClaimOf(ctx, cleaner.Client, stamps.Of(v))
			if claim != nil {
				err = removal.ErrMayBeServed
			}
			return err
		}
	}
	permit := cleaner.Permit(func(ctx context.Context, v cinder.Volume) error {
		if proven {
			return nil
		}
		return prove(ctx, v)
	})
	if proven {
		_ = permit(context.Background(), m.shownAs(l.volume, volume{uid: l.uid}))
	}
	return permit
}

// fault returns what is wrong with a state; empty if nothing is.
func (m *model) fault(s *state) string {
	for uid := uint8(1); uid <= uids; uid++ {
		exists, recorded := s.now.claim == uid, 0
		for id := uint8(1); id <= volumes; id++ {
			v, isNamed := s.at[id], s.now.names[uid] == id
			if isNamed && v.uid != 0 && v.uid != uid {
				return "a volume is recorded for another claim"
			}
			if v.uid == uid && (v.data || exists && (v.attached || isNamed)) {
				recorded++
			}
		}
		if recorded > 1 {
			return "a claim has two recorded volumes"
		}
	}
	// A leader that has seen everything must be able to remove what is not needed.
	for id := uint8(1); id <= volumes; id++ {
		v := s.at[id]
		isNeeded := s.now.names[v.uid] == id || s.now.claim == v.uid && s.now.names[v.uid] == 0
		if v.uid == 0 || v.attached || isNeeded {
			continue
		}
		p := &proof{m: m, s: s, l: &leader{uid: v.uid, cache: s.now}, whole: true}
		if err := p.cleaner().IsUnneeded(context.Background(), m.shownAs(id, v)); err != nil {
			return "an unneeded volume is never removed: " + err.Error()
		}
	}
	return ""
}

// explored is what an exploration found.
type explored struct {
	states int
	fault  string
	trace  []string
}

// explore visits every state, the nearest first, until it finds a fault.
func (m model) explore() (found explored) {
	m.objectsRead = newObjectsRead()
	begin := state{now: kube{claim: 1}, created: 1, lease: 1}
	begin.leaders[0].cache = begin.now
	type way struct {
		from  int32
		event event
	}
	ways, seen, nearest := []way{{from: -1}}, map[state]struct{}{begin: {}}, []state{begin}
	for first := 0; len(nearest) > 0 && found.fault == ""; {
		var further []state
		for n := 0; n < len(nearest) && found.fault == ""; n++ {
			m.next(&nearest[n], func(next *state, e event, lost string) {
				if _, known := seen[*next]; found.fault != "" || known && lost == "" {
					return
				}
				seen[*next] = struct{}{}
				further, ways = append(further, *next), append(ways, way{int32(first + n), e})
				if found.fault = lost; lost == "" {
					found.fault = m.fault(next)
				}
			})
		}
		first, nearest = first+len(nearest), further
	}
	found.states = len(ways)
	for at := len(ways) - 1; found.fault != "" && at > 0; at = int(ways[at].from) {
		e := ways[at].event
		text, _, _ := strings.Cut(fmt.Sprintf(e.text, e.leader, e.uid, e.volume), "%!(EXTRA")
		found.trace = append(found.trace, text)
	}
	slices.Reverse(found.trace)
	return found
}

// TestModelOfRemovalsIsSound explores the program as it is.
func TestModelOfRemovalsIsSound(t *testing.T) {
	for name, test := range map[string]struct {
		model
		large bool
	}{
		"one claim, policy Delete":                       {model: model{mishaps: 2}, large: true},
		"one claim, policy Retain":                       {model: model{retain: true, mishaps: 2}, large: true},
		"created again, policy Delete":                   {model: model{again: true, mishaps: 1}, large: true},
		"created again, policy Retain":                   {model: model{again: true, retain: true}},
		"an attempt replaces a volume":                   {model: model{policyChanges: true, mishaps: 1}},
		"it does while a PersistentVolume is on its way": {model: model{policyChanges: true, savesLate: true, freshCaches: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.large && raceEnabled {
				t.Skip("nothing runs at the same time, and the race detector would take minutes")
			}
			found := test.explore()
			t.Logf("%d states", found.states)
			if found.fault != "" {
				t.Errorf("%s:\n%s", found.fault, strings.Join(found.trace, "\n"))
			}
		})
	}
}

// TestModelFindsMistakes proves that the exploration would find them. Each trace is the
// shortest.
func TestModelFindsMistakes(t *testing.T) {
	const (
		data, recorded = "a volume with data is removed", "the recorded volume of a claim is removed"
	)
	retain := model{retain: true, mishaps: 1}
	replacing := model{policyChanges: true, savesLate: true, freshCaches: true}
	for name, test := range map[string]struct {
		model
		deviations
		want string
	}{
		"the proof reads the cache":                                        {model{again: true}, deviations{readsCache: true}, recorded},
		"the proof reads the claim after the PersistentVolume":             {retain, deviations{readsClaimLast: true}, data},
		"the proof does not read the claim":                                {retain, deviations{skipsClaim: true}, recorded},
		"the proof takes a claim of the same name for the volume's":        {model{again: true}, deviations{comparesNames: true}, "an unneeded volume is never removed"},
		"the permit is not asked again just before the request":            {replacing, deviations{skipsLaterCheck: true}, recorded},
		"volumes that were attached are removed":                           {retain, deviations{ignoresAttached: true}, data},
		"there is no fence":                                                {retain, deviations{ignoresFence: true}, recorded},
		"a new leader does not wait for the read lag":                      {retain, deviations{ignoresLag: true}, data},
		"a volume is adopted by the name of its claim":                     {model{again: true}, deviations{adoptsByName: true}, "a volume is recorded for another claim"},
		"of two volumes, the older is kept and not the connected one":      {retain, deviations{prefersOldest: true}, recorded},
		"the finalizer goes before the volume is marked":                   {retain, deviations{releasesEarly: true}, data},
		"a PersistentVolume arrives before a late cache, at a replacement": {model{policyChanges: true, savesLate: true}, deviations{}, recorded},
	} {
		t.Run(name, func(t *testing.T) {
			test.model.deviations = test.deviations
			found := test.explore()
			if !strings.HasPrefix(found.fault, test.want) {
				t.Fatalf("found %q in %d states, want %q", found.fault, found.states, test.want)
			}
			t.Logf("%s after %d steps:\n%s", found.fault, len(found.trace), strings.Join(found.trace, "\n"))
		})
	}
}
